/** What guests of one thread have in common, such as what decides whose bytes go first. A service is known by its definition, a
 *  constant that both guests import; it is made for the first that asks and closed when the last has released it. */

/** A constant of the layer that the service belongs to. */
export interface ServiceDefinition<T> {
  create(): T;
  close?(service: T): void;
}

/** A guest's hold on a service. */
export interface ServiceLease<T> {
  readonly service: T;
  /** Idempotent. */
  release(): void;
}

interface Held {
  readonly service: unknown;
  holders: number;
}

export class SharedServices {
  readonly #held = new Map<ServiceDefinition<unknown>, Held>();

  use<T>(definition: ServiceDefinition<T>): ServiceLease<T> {
    const key = definition as ServiceDefinition<unknown>;
    const held = this.#held.get(key) ?? { service: definition.create(), holders: 0 };
    held.holders++;
    this.#held.set(key, held);
    const service = held.service as T;
    let released = false;
    const release = (): void => {
      if (released) return;
      released = true;
      held.holders--;
      if (held.holders > 0) return;
      this.#held.delete(key);
      definition.close?.(service);
    };
    return { service, release };
  }
}
