package caller

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/resolver"
)

// Classes of errors.
const (
	Refused = "refused"
	Reset   = "reset"
	Timeout = "timeout"
	TLS     = "tls"
	DNS     = "dns"
	Other   = "other"
)

// Result is what became of one request.
type Result struct {
	// ID is what the request was marked with.
	ID       string
	Start    time.Time
	Duration time.Duration
	// Sent is the request in words.
	Sent string
	// Remote is the address that was connected to.
	Remote string

	// Err is nil if there was an answer; Classes are what kind it is: a handshake that the server cut short is both tls
	// and reset.
	Err     error
	Classes []string

	// Status is HTTP's, 101 for a WebSocket that opened; of a line, what the application says.
	Status  int
	Version string
	Header  http.Header
	// Body is the beginning of the answer's body, BodyLength its length.
	Body       []byte
	BodyLength int64
	// GRPC is nil if the call was not gRPC. An error is a code, too, as gRPC's clients have it.
	GRPC        *codes.Code
	GRPCMessage string
	// Seen is what the application says it saw, nil if the answer is not of one.
	Seen *echo.Seen
	// Certificates are what the server showed, its own first.
	Certificates []*x509.Certificate
	// Addresses are the answer to dns://, sorted.
	Addresses []string
}

// Failed tells whether the request ended in an error of a class.
func (r *Result) Failed(class string) bool { return r.Err != nil && slices.Contains(r.Classes, class) }

// phase is how far a request had come.
type phase int

const (
	lookingUp phase = iota
	dialling
	shaking
	talking
)

func (r *Result) fail(at phase, err error) {
	r.Err, r.Classes = err, classes(at, err)
}

var errNoAnswer = errors.New("the connection ended before an answer")

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func classes(at phase, err error) []string {
	late := errors.Is(err, context.DeadlineExceeded) || isTimeout(err)
	var stream http2.StreamError
	var away http2.GoAwayError
	var lost http2.ConnectionError
	ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &stream) || errors.As(err, &away) || errors.As(err, &lost) ||
		strings.Contains(err.Error(), "http2: client conn") ||
		strings.Contains(err.Error(), "http2: Transport received Server's graceful shutdown")
	var alert tls.AlertError
	var op *net.OpError
	alerted := errors.As(err, &alert) || errors.As(err, &op) && op.Op == "remote error"
	switch {
	case at == lookingUp && errors.Is(err, resolver.ErrName):
		return []string{DNS}
	case at == lookingUp && late:
		return []string{DNS, Timeout}
	case at == lookingUp:
		return []string{DNS}
	case late:
		return []string{Timeout}
	case at == dialling && ended:
		return []string{Reset}
	case at == dialling:
		return []string{Refused}
	case at == shaking && ended:
		return []string{TLS, Reset}
	case at == shaking, alerted:
		return []string{TLS}
	case ended:
		return []string{Reset}
	}
	return []string{Other}
}
