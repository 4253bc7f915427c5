/** Arguments of a trace's events, as the recorder of collectives writes them. */
import type { ChromeEvent } from '../../trace/chrome.ts';

export function textOf({ args }: ChromeEvent, name: string): string | undefined {
  const value = args?.[name];
  return typeof value === 'string' ? value : undefined;
}

export function numberOf({ args }: ChromeEvent, name: string): number | undefined {
  const value = args?.[name];
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}

/** `all-reduce wait` and `all-reduce fairring` are of the same kind of call. */
export function kindOf({ name }: ChromeEvent): string {
  return name.split(' ', 1)[0];
}

export function isCollective({ ph, cat }: ChromeEvent): boolean {
  return ph === 'X' && cat === 'collective';
}

/** The part of a call in which a rank waits for others. */
export function isWait({ name }: ChromeEvent): boolean {
  return name.endsWith(' wait');
}

export function isOfGraph({ ph, cat }: ChromeEvent): boolean {
  return ph === 'X' && cat === 'graph';
}
