import { expect, it } from 'vitest';
import { SharedServices, type ServiceDefinition } from './shared-services.ts';

interface Arbiter {
  readonly number: number;
}

function arbiters() {
  const closed: number[] = [];
  let made = 0;
  const definition: ServiceDefinition<Arbiter> = { create: () => ({ number: ++made }), close: ({ number }) => void closed.push(number) };
  return { definition, closed };
}

it('guests of a thread have one; it is closed when the last has released it, once', () => {
  const { definition, closed } = arbiters();
  const services = new SharedServices();
  const first = services.use(definition);
  const second = services.use(definition);
  expect(second.service).toBe(first.service);
  first.release();
  first.release();
  expect(closed).toEqual([]);
  second.release();
  expect(closed).toEqual([1]);
  expect(services.use(definition).service.number).toBe(2);
});

it('each definition and each thread has its own', () => {
  const [one, other] = [arbiters().definition, arbiters().definition];
  const services = new SharedServices();
  const { service } = services.use(one);
  expect(services.use(other).service).not.toBe(service);
  expect(new SharedServices().use(one).service).not.toBe(service);
});
