/** Error messages' words for a value that was passed where an array is wanted, and how to get an array from it. Values of
 *  frameworks are told by their methods, because the frameworks are not here. */
import { describeValue } from '../base/schema.ts';

/** A description with advice: `a list: make an array of it with Float32Array.from(list)`; without, where none is known. */
export function describeForeign(value: unknown): string {
  return foreignValue(value) ?? describeValue(value);
}

/** The same, but undefined where there is no advice. */
export function foreignValue(value: unknown): string | undefined {
  if (typeof value === 'number') return `the number ${value}: put it into an array, Float32Array.of(${value})`;
  if (Array.isArray(value)) {
    const list = value.some((each) => Array.isArray(each)) ? 'list.flat(Infinity)' : 'list';
    return `a list: make an array of it with Float32Array.from(${list})`;
  }
  if (value instanceof ArrayBuffer || value instanceof SharedArrayBuffer)
    return `${describeValue(value)}: make a view of it, new Float32Array(buffer)`;
  if (value instanceof DataView)
    return 'a DataView: make an array of its memory, new Uint8Array(view.buffer, view.byteOffset, view.byteLength)';
  if (hasMethod(value, 'dataSync')) {
    const [what, adapter] = hasMethod(value, 'jsAsync') ? ['a jax-js array', 'jax-js'] : ['a TensorFlow.js tensor', 'tfjs'];
    return `${what}: take its values with 'await x.data()', or leave gradients to distribute() of shoal/ddp/${adapter}`;
  }
  if (hasMethod(value, 'then')) return `${describeValue(value)}: await it first`;
  return undefined;
}

function hasMethod(value: unknown, name: string): boolean {
  return typeof value === 'object' && value !== null && typeof (value as Record<string, unknown>)[name] === 'function';
}
