/** Generated from native/ by `npm run docs`: the interface of the addon that this code was written against. */
export const nativeInterface = 'af88eb2a7aef';
