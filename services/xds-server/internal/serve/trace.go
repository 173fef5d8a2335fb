package serve

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/serve/subscription"
)

// revisionContext continues the trace of the change that has led to a revision.
func revisionContext(rev *configv1.Revision) context.Context {
	carrier := propagation.MapCarrier{"traceparent": rev.GetTraceParent()}
	return propagation.TraceContext{}.Extract(context.Background(), carrier)
}

func revisionAttributes(rev *configv1.Revision) trace.SpanStartEventOption {
	return trace.WithAttributes(
		attribute.String("fairlead.revision.epoch", rev.GetEpoch()),
		attribute.Int64("fairlead.revision.sequence", int64(rev.GetSequence())), //nolint:gosec // counts up from 1
	)
}

// startRevision begins the span of Apply.
func (s *Server) startRevision(rev *configv1.Revision) (context.Context, trace.Span) {
	return s.tracer.Start(revisionContext(rev), "xds-server apply", revisionAttributes(rev))
}

// startPush begins the span of a response, from its sending to the ACK or NACK.
func (s *Server) startPush(st *stream, out *subscription.Response) trace.Span {
	_, span := s.tracer.Start(revisionContext(out.Revision), "xds-server push", revisionAttributes(out.Revision), trace.WithAttributes(
		attribute.String("fairlead.node", st.node.ID), attribute.String("fairlead.type", out.TypeURL),
		attribute.Int("fairlead.resources", len(out.Blobs)), attribute.Int("fairlead.removed", len(out.Removed)),
		attribute.Int("fairlead.bytes", out.Size),
	))
	return span
}
