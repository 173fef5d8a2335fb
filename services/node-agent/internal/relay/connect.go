package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
)

const (
	// attemptTimeout bounds one attempt, which tries each xds-server once.
	attemptTimeout = 5 * time.Second
	// certificateGrace is how long a stream waits for the workload's first certificate before it uses the token.
	certificateGrace = time.Second
)

// xdsStream is a stream to an xds-server on its own connection, so that every stream has the current certificate and a
// new choice of server.
type xdsStream struct {
	grpc.ClientStream
	conn   *grpc.ClientConn
	cancel context.CancelFunc
}

func (u *xdsStream) close() {
	u.cancel()
	_ = u.conn.Close()
}

// address is that of the xds-server, "" until it has answered.
func (u *xdsStream) address() string {
	if p, ok := peer.FromContext(u.Context()); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// connect opens a stream. It makes attempts, with a back-off before each, until an xds-server accepts the stream, ctx
// ends, or within is over; the error then says why the last attempt failed.
func (r *Relay) connect(ctx context.Context, method string, within time.Duration) (*xdsStream, error) {
	hold := r.clock.After(within)
	var last error
	for {
		if pause := r.backoff(); pause > 0 {
			select {
			case <-ctx.Done():
				return nil, status.FromContextError(ctx.Err()).Err()
			case <-hold:
				return nil, notReached(last)
			case <-r.clock.After(pause):
			}
		}
		token, err := r.callCredentials(ctx, hold)
		if err != nil {
			return nil, err
		}
		up, err := r.attempt(ctx, method, token)
		if err == nil {
			return up, nil
		}
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		if last == nil || last.Error() != err.Error() {
			r.log.Warn("no xds-server reached", "error", err)
		}
		last = err
		r.noteFailedAttempt()
		r.metrics.dialFailures.Inc()
	}
}

func notReached(last error) error {
	if last == nil {
		return status.Error(codes.Unavailable, "no xds-server reached yet")
	}
	return status.Errorf(codes.Unavailable, "no xds-server reached: %v", last)
}

// attempt tries each xds-server once, with the token of a file, or with the certificate if token is "".
func (r *Relay) attempt(ctx context.Context, method string, token string) (*xdsStream, error) {
	candidates := r.addresses.candidates(ctx, r.clock.Now())
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target:           strings.Join(candidates, ","),
		KeepOrder:        true,
		TLS:              r.tls,
		TokenFile:        token,
		MaxRecvBytes:     maxResponse,
		KeepaliveTime:    r.keepalive,
		KeepaliveTimeout: r.keepalive / 3,
	}, grpc.WithDisableRetry())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(attemptTimeout, cancel)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodecV2(newCodec()))
	if err == nil && late.Stop() {
		return &xdsStream{ClientStream: stream, conn: conn, cancel: cancel}, nil
	}
	cancel()
	_ = conn.Close()
	if err == nil || errors.Is(ctx.Err(), context.Canceled) && status.Code(err) == codes.Canceled {
		err = fmt.Errorf("no answer within %s", attemptTimeout)
	}
	return nil, fmt.Errorf("%s: %w", strings.Join(candidates, ", "), err)
}

// callCredentials chooses the call credentials of the next stream, and waits until there are any: none if the workload
// has a certificate, which authenticates the connection, else, after certificateGrace, the token. It returns the token
// file to use, or "" for the certificate.
func (r *Relay) callCredentials(ctx context.Context, hold <-chan time.Time) (string, error) {
	grace := r.clock.After(certificateGrace)
	for {
		changed := r.source.Changed()
		if m, err := r.source.Current(); err == nil && usable(m, r.clock.Now()) {
			return "", nil
		}
		select {
		case <-ctx.Done():
			return "", status.FromContextError(ctx.Err()).Err()
		case <-changed:
		case <-grace:
			if r.tokenFile == "" {
				r.log.Info("waiting for a certificate before connecting to xds-server")
				continue
			}
			_, err := rpc.ReadToken(r.tokenFile)
			if err == nil {
				return r.tokenFile, nil
			}
			r.log.Info("waiting for a certificate before connecting to xds-server", "token_error", err)
		case <-hold:
			return "", status.Error(codes.Unavailable, "the workload has no certificate yet")
		}
	}
}

func usable(m *tlsconf.Material, now time.Time) bool {
	return m.Certificate != nil && now.Before(m.NotAfter)
}
