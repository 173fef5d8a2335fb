package upstream

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/ca/internal/signer"
)

// Service is a service in the words of errors.
type Service struct {
	// Name of the service with its address, such as "the signer at 127.0.0.1:1".
	Name string
	// TLS says what an operator can do if a TLS handshake fails, and is empty for a service without TLS. Denied says
	// what to do if the service refuses the credential of a request.
	TLS, Denied string
}

// maxRetryAfter bounds what a service may ask the ca to wait.
const maxRetryAfter = time.Minute

// GRPCError returns what the error of a call means. secrets are parts of the request that must not appear in the error.
// The error is a context.Canceled if the caller ended the call, and a context.DeadlineExceeded if that was the time.
func (s Service) GRPCError(err error, secrets ...string) *signer.Error {
	st := status.Convert(err)
	said := Quote(st.Message(), secrets...)
	switch st.Code() {
	case codes.ResourceExhausted:
		if tooLarge(st.Message()) {
			return signer.Errorf(signer.Lied, "%s answered with more than %d bytes: %s", s.Name, MaxAnswer, said)
		}
		e := signer.Errorf(signer.Busy, "%s takes no more requests now: %s", s.Name, said)
		for _, d := range st.Details() {
			if info, ok := d.(*errdetails.RetryInfo); ok {
				e.RetryAfter = bounded(info.GetRetryDelay().AsDuration())
			}
		}
		return e
	case codes.Unauthenticated, codes.PermissionDenied:
		return signer.Errorf(signer.Refused, "%s refused the request (%s): %s; %s", s.Name, st.Code(), said, s.Denied)
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.NotFound, codes.AlreadyExists:
		return signer.Errorf(signer.Refused, "%s refused the request (%s): %s; have its operator allow this certificate", s.Name, st.Code(),
			said)
	case codes.Unimplemented:
		return signer.Errorf(signer.Refused,
			"%s does not have the method that the ca calls: %s; compare kind and address in the signer file with the service", s.Name, said)
	case codes.DeadlineExceeded:
		return s.late(said)
	case codes.Canceled:
		return s.left(said)
	}
	return s.away(said)
}

// late and left wrap the errors of contexts, so that a breaker can tell a slow service from a caller that has left.
func (s Service) late(said string) *signer.Error {
	return signer.Errorf(signer.Away, "%s did not answer in time: %w: %s", s.Name, context.DeadlineExceeded, said)
}

func (s Service) left(said string) *signer.Error {
	return signer.Errorf(signer.Away, "the call of %s was ended: %w: %s", s.Name, context.Canceled, said)
}

// away is the error of a service that does not answer; said are words of this process, or of the service. A service
// that refuses a client's certificate closes the connection, which the client may notice while it writes.
func (s Service) away(said string) *signer.Error {
	for _, part := range []string{
		"tls: ", "x509: ", "handshake failed", "error reading server preface", "write: broken pipe", "write: connection reset by peer",
	} {
		if s.TLS != "" && strings.Contains(said, part) {
			return signer.Errorf(signer.Away, "no TLS connection with %s: %s; %s", s.Name, said, s.TLS)
		}
	}
	return signer.Errorf(signer.Away, "%s does not answer: %s", s.Name, said)
}

// tooLarge tells the refusal of a long answer, which gRPC reports with the code of a busy server, from a busy server.
func tooLarge(message string) bool {
	return strings.HasPrefix(message, "grpc: received message") && strings.Contains(message, "larger than max")
}

func bounded(d time.Duration) time.Duration { return max(0, min(d, maxRetryAfter)) }

// HTTPFailure returns what it means that an HTTP request had no answer.
func (s Service) HTTPFailure(err error, secrets ...string) *signer.Error {
	said := Quote(err.Error(), secrets...)
	timeout := interface{ Timeout() bool }(nil)
	switch {
	case errors.Is(err, context.Canceled):
		return s.left(said)
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		return s.late(said)
	}
	return s.away(said)
}

// HTTPError returns what an answer means whose status is not a success; said is its body, or what of it is for readers.
func (s Service) HTTPError(code int, h http.Header, said string, secrets ...string) *signer.Error {
	said = Quote(said, secrets...)
	switch {
	case code == http.StatusTooManyRequests:
		e := signer.Errorf(signer.Busy, "%s takes no more requests now: %s", s.Name, said)
		if seconds, err := strconv.Atoi(h.Get("Retry-After")); err == nil {
			e.RetryAfter = bounded(time.Duration(min(seconds, 3600)) * time.Second)
		}
		return e
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return signer.Errorf(signer.Refused, "%s refused the request (%d): %s; %s", s.Name, code, said, s.Denied)
	case code >= 400 && code < 500:
		return signer.Errorf(signer.Refused, "%s refused the request (%d): %s; have its operator allow this certificate", s.Name, code, said)
	case code >= 500:
		return signer.Errorf(signer.Away, "%s failed (%d): %s", s.Name, code, said)
	}
	return signer.Errorf(signer.Lied, "%s answered with the status %d: %s", s.Name, code, said)
}
