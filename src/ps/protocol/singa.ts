/** SINGA's numbers for participants and messages, which the parameter server and users of its vocabulary agree on. */

/** Roles of participants, in addresses of messages. */
export const Role = {
  /** The parameters of a worker: gets, puts and updates. */
  workerParameter: 0,
  /** The layers of a worker: features and gradients of a network that is split over workers. */
  workerLayer: 1,
  /** The owner of a part of the parameters. */
  server: 2,
  /** The end of a process through which its workers and servers reach other processes. */
  stub: 3,
  /** The program that runs the job, or calls procedures in it. */
  runtime: 4,
  /** The standby of a server; SINGA has none. */
  standby: 5,
} as const;

/** Types of messages. */
export const MessageType = {
  /** Worker → server: asks for the values of a parameter; the answer has the same type. */
  get: 0,
  /** Worker → server: a parameter's first value. */
  put: 1,
  /** Changes since the last exchange, between server groups. */
  sync: 2,
  /** Worker → server: a gradient. */
  update: 3,
  /** Server → master of a slice, which is in another group: the sum of its workers' pushes, or a question for newer values. */
  syncRequest: 4,
  /** The answer: the master's values and version. */
  syncResponse: 5,
  /** Ends the receiver's loop. */
  stop: 6,
  /** Features, forward, between workers that split one network. */
  featureBlob: 7,
  /** Server → worker: the values that `get` asked for. */
  getResponse: 8,
  /** Server → worker: the update has been applied, or why not. */
  updateResponse: 9,
  /** A gradient, backward, between workers that split one network. */
  gradientBlob: 10,
  /** A worker's losses and the like, for their collector. */
  metric: 11,
} as const;
