import { expect, it } from 'vitest';
import { MessagingContext } from './context.ts';

it('a context that is closed while a backend is being made keeps none', async () => {
  const context = new MessagingContext({ world: 'closing', secret: new Uint8Array(32) });
  const made = context.backendOf('inproc://there');
  await context.close();
  await expect(made).rejects.toMatchObject({ code: 'closed' });
});
