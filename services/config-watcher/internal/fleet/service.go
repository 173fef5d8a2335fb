package fleet

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// longestWait bounds WaitAcked if the caller has set no deadline.
const longestWait = 5 * time.Minute

// Service implements FleetService and the Report method of ConfigService.
type Service struct {
	configv1.UnimplementedFleetServiceServer
	table *Table
	log   *revision.Log
	stop  <-chan struct{}
	sight Sight
	// refused returns the refused registrations of an xds-server and a channel that is closed when they change.
	refused Refused
}

// Refused returns the proxies of an xds-server whose registration is refused, and a channel that is closed when that
// may have changed.
type Refused func(xdsServer string) ([]*configv1.RefusedRegistration, <-chan struct{})

// Sight reports which namespaces' proxies the caller may see. If namespace is not empty the caller asks for that one
// alone. A nil visible means all namespaces. The service returns err to the caller.
type Sight func(ctx context.Context, namespace string) (visible func(namespace string) bool, err error)

// NewService serves a table. Closing stop ends report streams and waits, so that the server can drain.
func NewService(t *Table, log *revision.Log, stop <-chan struct{}, sight Sight, refused Refused) *Service {
	return &Service{table: t, log: log, stop: stop, sight: sight, refused: refused}
}

// Report implements ConfigService.
func (s *Service) Report(stream grpc.BidiStreamingServer[configv1.ReportRequest, configv1.ReportResponse]) error {
	type item struct {
		message *configv1.ReportRequest
		err     error
	}
	requests := make(chan item)
	go func() {
		for {
			m, err := stream.Recv()
			select {
			case requests <- item{m, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	var reports *ReportStream
	received := uint64(0)
	var refusals <-chan struct{} // nil before the first report
	for {
		select {
		case <-refusals:
			var refused []*configv1.RefusedRegistration
			if refused, refusals = s.refused(reports.name); len(refused) == 0 {
				continue
			}
			if err := stream.Send(&configv1.ReportResponse{Received: received, KnowsSettled: true, Refused: refused}); err != nil {
				closeReports(reports)
				return err
			}
		case <-stream.Context().Done():
			closeReports(reports)
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.stop:
			closeReports(reports)
			return status.Error(codes.Unavailable, "config-watcher is stopping")
		case r := <-requests:
			if errors.Is(r.err, io.EOF) {
				closeReports(reports)
				return nil
			}
			if r.err != nil {
				closeReports(reports)
				return r.err
			}
			if reports == nil {
				name := r.message.GetSubscriber().GetInstance()
				if name == "" {
					return status.Error(codes.InvalidArgument, "the first report names its subscriber")
				}
				reports = s.table.Report(name)
				refusals = closed
			}
			received++
			reports.Apply(r.message, received == 1)
			if received%answerEvery != 1 {
				continue
			}
			if err := stream.Send(&configv1.ReportResponse{Received: received, KnowsSettled: true}); err != nil {
				closeReports(reports)
				return err
			}
		}
	}
}

// closed is a channel that makes Report look at refused registrations at once.
var closed = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

func closeReports(r *ReportStream) {
	if r != nil {
		r.Close()
	}
}

// answerEvery is the number of reports for each answer. The first answer says all that the sender needs, and every
// answer wakes it up.
const answerEvery = 64

// ListProxies implements FleetService.
func (s *Service) ListProxies(ctx context.Context, req *configv1.ListProxiesRequest) (*configv1.ListProxiesResponse, error) {
	visible, err := s.sight(ctx, req.Namespace)
	if err != nil {
		return nil, err
	}
	out := &configv1.ListProxiesResponse{Proxies: s.table.List(req.Namespace), Refusals: s.table.Refusals(req.Namespace)}
	r := s.table.Registering()
	out.Reporters, out.Unsettled = uint32(r.Reporters), r.Unsettled //nolint:gosec // small
	if visible != nil {
		out.Proxies = slices.DeleteFunc(out.Proxies, func(p *configv1.ProxyStatus) bool { return !visible(p.Namespace) })
		out.Refusals = slices.DeleteFunc(out.Refusals, func(r *configv1.Refusal) bool { return !visible(namespaceOf(r.Identity)) })
	}
	if snapshot, _ := s.log.Current(); snapshot != nil {
		out.Revision = snapshot.Revision()
	}
	return out, nil
}

// WaitAcked implements FleetService for the proxies that the caller may see. It answers shortly before the caller's
// deadline, so that the caller learns which proxies are pending.
func (s *Service) WaitAcked(ctx context.Context, req *configv1.WaitAckedRequest) (*configv1.WaitAckedResponse, error) {
	visible, err := s.sight(ctx, "")
	if err != nil {
		return nil, err
	}
	target, err := s.target(ctx, req.Sequence)
	if err != nil {
		return nil, err
	}
	limit := s.table.clock.NewTimer(budget(ctx))
	defer limit.Stop()
	for {
		begun := s.table.clock.Now()
		v, changed, recheck := s.table.ProgressOf(target, visible)
		took := s.table.clock.Now().Sub(begun)
		if v.Done() && v.Reporters == 0 {
			return nil, errUnreported
		}
		if v.Done() {
			return answer(target, v), nil
		}
		var timer <-chan time.Time
		if recheck > 0 {
			timer = s.table.clock.After(recheck)
		}
		expired, err := s.waitFor(ctx, limit.C(), changed, timer)
		if err == nil && !expired && took > 0 {
			expired, err = s.waitFor(ctx, limit.C(), nil, s.table.clock.After(min(restFactor*took, longestRest)))
		}
		if err != nil {
			return nil, err
		}
		if expired {
			return answer(target, v), nil
		}
	}
}

// A look at the whole fleet costs the more, the larger it is, and each report is a reason for one. Between two looks
// WaitAcked rests for restFactor times what one takes, longestRest at most.
const (
	restFactor  = 10
	longestRest = 250 * time.Millisecond
)

// waitFor waits until either channel says something; expired is true if the caller's time is over before.
func (s *Service) waitFor(ctx context.Context, limit <-chan time.Time, changed <-chan struct{}, timer <-chan time.Time) (expired bool,
	err error) {
	select {
	case <-changed:
	case <-timer:
	case <-limit:
		return true, nil
	case <-s.stop:
		return false, status.Error(codes.Unavailable, "config-watcher is stopping")
	case <-ctx.Done():
		return false, status.FromContextError(ctx.Err()).Err()
	}
	return false, nil
}

// errUnreported is the answer of WaitAcked when no xds-server reports: what the proxies hold is not known.
var errUnreported = status.Error(codes.FailedPrecondition,
	"no xds-server reports to config-watcher, so that it is not known what the proxies hold: "+
		"see whether xds-server runs and reaches config-watcher, and wait again")

func budget(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return longestWait
	}
	left := time.Until(deadline)
	return max(left-min(left/10, 500*time.Millisecond), 0)
}

func answer(target *configv1.Revision, v Progress) *configv1.WaitAckedResponse {
	return &configv1.WaitAckedResponse{Revision: target, Acked: v.Acked, Pending: v.Pending, Rejected: v.Rejected}
}

// target returns the revision to wait for, the newest one if sequence is 0. For an earlier revision only the number
// counts, because proxies may skip to a later one.
func (s *Service) target(ctx context.Context, sequence uint64) (*configv1.Revision, error) {
	for {
		snapshot, changed := s.log.Current()
		switch {
		case snapshot == nil:
			return nil, status.Error(codes.Unavailable, "not every source has synced yet")
		case sequence == 0 || sequence == snapshot.Sequence():
			return snapshot.Revision(), nil
		case sequence < snapshot.Sequence():
			return &configv1.Revision{Epoch: s.log.Epoch(), Sequence: sequence, StateHash: snapshot.Revision().StateHash}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-s.stop:
			return nil, status.Error(codes.Unavailable, "config-watcher is stopping")
		}
	}
}
