/** Saves the variables of a graph to a file, and assigns them from one: how training goes on after a parameter server was lost.
 *
 *      8 bytes "shoalgr1" │ SHA-256 of the rest │ names as JSON │ values, as between tasks */
import { checkedBuilder, checkOutputs } from './structure/check-arguments.ts';
import { createHash } from 'node:crypto';
import { open, rename, rm } from 'node:fs/promises';
import { ShoalError } from '../base/errors.ts';
import { readRegularFile } from '../base/files/read-file.ts';
import { systemRandom } from '../base/random.ts';
import type { Session } from './execute/session.ts';
import { placeholder } from './ops/array.ts';
import { kvExport, kvImport } from './ops/embedding.ts';
import { assign } from './ops/state.ts';
import { joinPieces } from './rpc/rpc.ts';
import type { GraphBuilder } from './structure/builder.ts';
import type { Node, Output } from './structure/graph-node.ts';
import type { Value } from './structure/value.ts';
import { decodeMessage, encodeMessage } from './wire/messages.ts';

const magic = Buffer.from('shoalgr1');
const headBytes = magic.length + 32;

/** The parts of a variable, by their names in the file; the placeholders that bring it back, and the node that does. */
interface Saved {
  readonly names: readonly string[];
  readonly parts: readonly Output[];
  readonly values: readonly Output[];
  readonly assignment: Node;
}

/** Saves the variables of a graph to a file and restores them, as TensorFlow's `Saver`.
 *
 *      const saver = new Saver(g);                     // before g.finish()
 *      await saver.save(session, 'model.graph');
 *      await saver.restore(session, 'model.graph'); */
export class Saver {
  readonly #saved: readonly Saved[];

  /** Adds what restoring needs: to be made before the graph is finished. @param variables default: all that the graph has so far.
   *  @throws ShoalError `usage` for what is no variable. */
  constructor(g: GraphBuilder, variables: readonly Output[] = variablesOf(checkedBuilder('Saver', g))) {
    checkOutputs('Saver: variables', variables);
    this.#saved = checkedBuilder('Saver', g).withScope('save', () =>
      variables.map((variable) => {
        const { node } = variable;
        if (!variableOps.includes(node.op)) throw new ShoalError('usage', `Saver: '${variable.name}' is no variable`);
        const isTable = node.op === 'KvVariable';
        const parts = isTable ? g.node(kvExport, [variable]).outputs : [variable];
        const values = parts.map(({ dtype, shape }) => placeholder(g, dtype, shape, { colocateWith: node }));
        const { filter_freq, steps_to_live } = node.attributes;
        const assignment = isTable
          ? g.node(kvImport, [variable, ...values], { filter_freq, steps_to_live })
          : assign(g, variable, values[0]).node;
        return { names: parts.map(({ slot }) => (isTable ? `${node.name}/${slot}` : node.name)), parts, values, assignment };
      }),
    );
  }

  /** All variables as they are, in one step; while other sessions train, of no single moment. The file is there whole, or as it was.
   *  @throws ShoalError `usage` for a variable that has no value yet, `system` when the file cannot be written. */
  async save(session: Session, path: string): Promise<void> {
    const parts = this.#saved.flatMap((saved) => saved.parts);
    const values = await session.run([], parts);
    const names = this.#saved.flatMap((saved) => saved.names);
    const content = joinPieces(encodeMessage({ names }, values));
    const temporary = `${path}.${Buffer.from(systemRandom.bytes(6)).toString('hex')}`;
    try {
      const file = await open(temporary, 'wx', 0o644);
      try {
        await file.writev([magic, digest(content), content]);
        await file.sync();
      } finally {
        await file.close();
      }
      await rename(temporary, path);
    } catch (thrown) {
      await rm(temporary, { force: true });
      throw new ShoalError('system', `the variables could not be saved to ${path}: ${ShoalError.from(thrown).message}`, { cause: thrown });
    }
  }

  /** @throws ShoalError `usage` when the file lacks a variable or has it with another shape, `protocol` when it is damaged, `system`. */
  async restore(session: Session, path: string): Promise<void> {
    const values = await readValues(path);
    const feeds = this.#saved.flatMap((saved) =>
      saved.names.map((name, k) => {
        const found = values.get(name);
        if (found === undefined) throw new ShoalError('usage', `${path} has no variable '${name}'`);
        return [saved.values[k], found] as const;
      }),
    );
    const assignments = this.#saved.map(({ assignment }) => assignment);
    await session.run(feeds, assignments);
  }
}

const variableOps = ['VariableV2', 'KvVariable'];

function variablesOf(g: GraphBuilder): Output[] {
  return g.nodes.filter(({ op }) => variableOps.includes(op)).map(({ outputs: [variable] }) => variable);
}

async function readValues(path: string): Promise<Map<string, Value>> {
  const bytes = await readRegularFile(path, { bytesMax: 2 ** 31 - 1 }).catch((thrown: unknown) => {
    throw new ShoalError('system', `${path} could not be read: ${ShoalError.from(thrown).message}`, { cause: thrown });
  });
  // At an address of its own, so that values are aligned.
  const content = Uint8Array.from(bytes.subarray(headBytes));
  if (!bytes.subarray(0, magic.length).equals(magic)) throw new ShoalError('protocol', `${path} holds no variables of a graph`);
  if (!bytes.subarray(magic.length, headBytes).equals(digest(content))) throw new ShoalError('protocol', `${path} is damaged`);
  const { fields, values } = decodeMessage(content);
  const { names } = fields as { readonly names: readonly string[] };
  return new Map(names.map((name, k) => [name, values[k]]));
}

function digest(content: Uint8Array): Buffer {
  return createHash('sha256').update(content).digest();
}
