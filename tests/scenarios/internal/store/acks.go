package store

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/wait"
)

// Acked waits until every connected proxy has acknowledged a revision, the newest if it is 0.
func (s *Store) Acked(ctx context.Context, revision uint64) error {
	ctx, cancel := context.WithTimeout(ctx, AckedWithin)
	defer cancel()
	began := time.Now()
	for {
		pending, err := s.ackedSoon(ctx, revision)
		switch {
		case err != nil:
			return err
		case len(pending) == 0:
			return nil
		case time.Since(began) > AckedWithin-time.Second:
			return fmt.Errorf("after %s, these proxies have not acknowledged the change: %s", since(began), strings.Join(pending, ", "))
		}
		s.Log("for %s, waiting for acknowledgements of %s", since(began), strings.Join(pending, ", "))
	}
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

// ackedSoon waits a little, and lists the proxies that have not acknowledged by then.
func (s *Store) ackedSoon(ctx context.Context, revision uint64) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, slowAck)
	defer cancel()
	resp, err := s.fleet.WaitAcked(ctx, &configv1.WaitAckedRequest{Sequence: revision}, grpc.WaitForReady(true))
	if err != nil {
		if status.Code(err) == codes.DeadlineExceeded {
			return []string{"config-watcher"}, nil
		}
		return nil, fmt.Errorf("wait for the proxies: %w", explain(err))
	}
	for _, p := range resp.Rejected {
		for _, t := range p.Types {
			if r := t.GetRejection(); r != nil && !leftOut.MatchString(r.Message) {
				return nil, fmt.Errorf("%s has rejected %s %v: %s", p.NodeId, t.TypeUrl, r.ResourceNames, r.Message)
			}
		}
	}
	if len(resp.Rejected) > 0 && len(resp.Pending) > 0 {
		// Without waiting: config-watcher answers at once that something was left out.
		_ = wait.Pause(ctx, leftOutPause) // the caller looks at ctx
	}
	return resp.Pending, nil
}

// leftOut is what is reported of an EnvoyFilter that would break a resource, and of policies that close a port of UDP:
// the proxies have all else, and were sent nothing to reject.
var leftOut = regexp.MustCompile(`^xds-server could not build it: (EnvoyFilter \S+ is left out|UDP port \d+ takes no datagrams): `)

const leftOutPause = 50 * time.Millisecond

// Proxies are those that the control plane knows, with what they have acknowledged and rejected.
func (s *Store) Proxies(ctx context.Context) ([]*configv1.ProxyStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, AckedWithin)
	defer cancel()
	resp, err := s.fleet.ListProxies(ctx, &configv1.ListProxiesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, explain(err)
	}
	return resp.Proxies, nil
}

// explain turns a gRPC error into one for people.
func explain(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch st.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return &Refused{Text: st.Message()}
	}
	return fmt.Errorf("config-watcher: %s: %s", st.Code(), st.Message())
}
