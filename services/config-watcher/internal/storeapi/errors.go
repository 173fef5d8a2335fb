// Package storeapi implements ConfigStoreService, the config API that `fairlead config` calls, over the store (package
// source/memory). Server authorises each call, validates objects, writes them and waits for the revision that contains
// them; server.go has the methods.
package storeapi

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/config-watcher/internal/audit"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// maxViolations and maxMessage bound an error, because gRPC carries it in headers.
const (
	maxViolations = 20
	maxMessage    = 4 << 10
)

// statusOf turns an error into a gRPC status.
func statusOf(err error) error {
	var problems object.Problems
	switch {
	case err == nil:
		return nil
	case errors.As(err, &problems):
		return invalid(problems)
	case errors.Is(err, memory.ErrNotFound):
		return status.Error(codes.NotFound, object.Cut(err.Error(), maxMessage))
	case errors.Is(err, memory.ErrExists):
		return status.Error(codes.AlreadyExists, object.Cut(err.Error(), maxMessage))
	case errors.Is(err, memory.ErrStale):
		return status.Error(codes.Aborted, object.Cut(err.Error(), maxMessage))
	case errors.Is(err, audit.ErrUnwritable), errors.Is(err, memory.ErrNotLoaded), errors.Is(err, memory.ErrNotWritable):
		return status.Error(codes.Unavailable, object.Cut(err.Error(), maxMessage))
	case errors.Is(err, memory.ErrSlow):
		return status.Error(codes.ResourceExhausted, err.Error()+"; watch again")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Internal, object.Cut(err.Error(), maxMessage))
}

// invalid returns INVALID_ARGUMENT with one line and one google.rpc.BadRequest violation for each problem.
func invalid(problems object.Problems) error {
	st := status.New(codes.InvalidArgument, object.Cut(problems.Error(), maxMessage))
	details := &errdetails.BadRequest{}
	for i, p := range problems {
		if i == maxViolations {
			break
		}
		field := p.Field
		if p.Object != "" {
			field = p.Object + ": " + field
		}
		details.FieldViolations = append(details.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field: object.Cut(field, 300), Description: object.Cut(p.Description(), 300), Reason: "INVALID",
		})
	}
	if with, err := st.WithDetails(details); err == nil {
		st = with
	}
	return st.Err()
}
