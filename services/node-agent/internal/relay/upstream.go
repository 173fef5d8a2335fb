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
	// attemptTimeout bounds connecting to the servers of one attempt.
	attemptTimeout = 5 * time.Second
	// certificateGrace is how long a stream waits for the first certificate
	// before it makes do with the token.
	certificateGrace = time.Second
	// Pauses between attempts: within a second at first, since another server
	// is likely to be there; they grow while nobody answers.
	firstPause = 500 * time.Millisecond
	maxPause   = 5 * time.Second
	// lostPause is how long after the loss of an xds-server streams are those
	// that were lost with it.
	lostPause = 10 * time.Second
)

// upstream is a stream to an xds-server on a connection of its own, so that
// every stream has the current certificate and a fresh choice of server.
type upstream struct {
	grpc.ClientStream
	conn   *grpc.ClientConn
	cancel context.CancelFunc
}

func (u *upstream) close() {
	u.cancel()
	_ = u.conn.Close()
}

// address is the server's, known once it has answered.
func (u *upstream) address() string {
	if p, ok := peer.FromContext(u.Context()); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// connect opens the stream, trying servers until one accepts it, ctx ends, or
// the time to hold the caller is over. The error then says why.
func (r *Relay) connect(ctx context.Context, method string) (*upstream, error) {
	hold := r.clock.After(r.hold)
	var last error
	for {
		if pause := r.pause(); pause > 0 {
			select {
			case <-ctx.Done():
				return nil, status.FromContextError(ctx.Err()).Err()
			case <-hold:
				return nil, notReached(last)
			case <-r.clock.After(pause):
			}
		}
		token, err := r.credential(ctx, hold)
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
		r.ended(false, false)
		r.metrics.dialFailures.Inc()
	}
}

func notReached(last error) error {
	if last == nil {
		return status.Error(codes.Unavailable, "no xds-server reached yet")
	}
	return status.Errorf(codes.Unavailable, "no xds-server reached: %v", last)
}

// attempt tries each server once.
func (r *Relay) attempt(ctx context.Context, method string, token string) (*upstream, error) {
	candidates := r.addresses.candidates(ctx, r.clock.Now())
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target:       strings.Join(candidates, ","),
		KeepOrder:    true,
		TLS:          r.tls,
		TokenFile:    token,
		MaxRecvBytes: maxResponse,
		// A server that no longer answers is noticed within 40 s by default.
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
		return &upstream{ClientStream: stream, conn: conn, cancel: cancel}, nil
	}
	cancel()
	_ = conn.Close()
	if err == nil || errors.Is(ctx.Err(), context.Canceled) && status.Code(err) == codes.Canceled {
		err = fmt.Errorf("no answer within %s", attemptTimeout)
	}
	return nil, fmt.Errorf("%s: %w", strings.Join(candidates, ", "), err)
}

// credential decides how the next stream authenticates: with the certificate
// if there is one, else with the token; with neither it waits. The result is
// the token file to use, or "" for the certificate.
func (r *Relay) credential(ctx context.Context, hold <-chan time.Time) (string, error) {
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
