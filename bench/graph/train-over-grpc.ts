/** The wide & deep example with its tensors over gRPC: like examples/wide-deep/train.ts, with the same options. */
import { trainWideDeep } from '../../examples/wide-deep/wide-deep.ts';
import { startGrpcGraphServer } from '../grpc/graph.ts';

await trainWideDeep(startGrpcGraphServer);
