/** Generated from native/ by `npm run docs`: the interface of the addon that this code was written against. */
export const nativeInterface = 'ed852f03fa72';
