// Package report tells config-watcher what was sent to each proxy, and what the proxy has acknowledged or rejected.
package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const (
	// gap is how long a message waits for the answers of proxies that were just sent something, and the least time
	// between two messages; changes meanwhile go into one message. After a message, the next one waits perProxy for
	// each proxy in it, at most maxGap, so that reports take no more than a few percent of the process's time.
	gap      = 10 * time.Millisecond
	perProxy = 250 * time.Microsecond
	maxGap   = time.Second
	// batch is the most proxies in one message.
	batch = 500
)

// Sink opens a Report stream; configv1.ConfigServiceClient implements it.
type Sink interface {
	Report(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[configv1.ReportRequest, configv1.ReportResponse], error)
}

// Fleet has the statuses of the proxies; serve.Server implements it.
type Fleet interface {
	// Changed is closed at the next change; it is taken before Report.
	Changed() <-chan struct{}
	// Report returns the statuses that may have changed since the last call, and the node ids whose stream has ended;
	// with all, every status.
	Report(all bool) (statuses []*configv1.ProxyStatus, gone []string)
	// NewRefusals returns the refused streams if there is a new one since the last call, or if all is true; nil
	// otherwise.
	NewRefusals(all bool) *configv1.Refusals
	// Served returns the revision that is served. Reports made afterwards include what it means for the proxies.
	Served() *configv1.Revision
	// RefuseRegistrations ends the streams of proxies that want to be registered and may not.
	RefuseRegistrations([]*configv1.RefusedRegistration)
	// AllAnswered is closed once all proxies have answered what they were sent of the served revision; nil if they
	// have.
	AllAnswered() <-chan struct{}
}

// Config of a Reporter. Sink, Fleet, Subscriber and Log are required.
type Config struct {
	Sink       Sink
	Fleet      Fleet
	Subscriber *configv1.Subscriber
	Log        *slog.Logger
	Clock      clock.Clock
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

// Reporter streams the changes of the fleet's statuses.
type Reporter struct{ cfg Config }

// New checks the configuration; Run does the work.
func New(cfg Config) (*Reporter, error) {
	if cfg.Sink == nil || cfg.Fleet == nil || cfg.Subscriber == nil || cfg.Log == nil {
		return nil, errors.New("report: Sink, Fleet, Subscriber and Log are required")
	}
	cfg.Clock = clock.Or(cfg.Clock)
	return &Reporter{cfg}, nil
}

// Run reports until ctx ends. When a stream ends, it opens another one after a back-off.
func (r *Reporter) Run(ctx context.Context) error {
	rpc.Reopener{Clock: r.cfg.Clock, Rand: r.cfg.Rand}.Run(ctx, r.stream, func(err error, pause time.Duration) {
		r.cfg.Log.Debug("report to config-watcher ended", "error", err, "retry_in", pause)
	})
	return nil
}

// stream runs one Report stream. accepted is true if config-watcher has accepted at least one message.
func (r *Reporter) stream(ctx context.Context) (accepted bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.cfg.Sink.Report(ctx)
	if err != nil {
		return false, fmt.Errorf("open report: %w", err)
	}
	heard := listen(stream, r.cfg.Fleet.RefuseRegistrations)
	var (
		served *configv1.Revision
		next   time.Time // nothing is sent before
	)
	for all := true; ; {
		changed := r.cfg.Fleet.Changed()
		revision := r.cfg.Fleet.Served()
		// A receiver that does not know "settled" must be told for each proxy what it has acknowledged.
		complete := all || revision != served && !heard.knowsSettled.Load()
		messages := differences(r.cfg.Fleet, complete)
		if len(messages) == 0 && (all || revision != served) {
			messages = append(messages, &configv1.ReportRequest{})
		}
		if all {
			messages[0].Subscriber, all = r.cfg.Subscriber, false
		}
		told := 0
		for i, m := range messages {
			told += len(m.GetProxies())
			if i == len(messages)-1 {
				m.Revision = revision
			}
			if err := stream.Send(m); err != nil {
				if errors.Is(err, io.EOF) {
					err = <-heard.end
				}
				return heard.first.Load(), fmt.Errorf("report: %w", err)
			}
		}
		if served = revision; len(messages) > 0 {
			next = r.cfg.Clock.Now().Add(min(max(gap, time.Duration(told)*perProxy), maxGap))
		}
		select {
		case <-ctx.Done():
			return heard.first.Load(), ctx.Err()
		case err := <-heard.end:
			return heard.first.Load(), fmt.Errorf("report: %w", err)
		case <-changed:
		}
		if err := r.collect(ctx, next); err != nil {
			return heard.first.Load(), err
		}
	}
}

// collect waits for changes that should go into one message: until the given time, and shortly for proxies that have
// not answered yet.
func (r *Reporter) collect(ctx context.Context, until time.Time) error {
	if wait := until.Sub(r.cfg.Clock.Now()); wait > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.cfg.Clock.After(wait):
		}
	}
	answered := r.cfg.Fleet.AllAnswered()
	if answered == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-answered:
	case <-r.cfg.Clock.After(gap):
	}
	return nil
}

// answers holds what config-watcher has answered on a Report stream.
type answers struct {
	// first is true once a message was accepted; knowsSettled is that of the newest answer.
	first, knowsSettled atomic.Bool
	end                 chan error
}

// listen receives answers until the stream ends, and calls refuse for those that refuse registrations.
func listen(stream grpc.BidiStreamingClient[configv1.ReportRequest, configv1.ReportResponse],
	refuse func([]*configv1.RefusedRegistration)) *answers {
	heard := &answers{end: make(chan error, 1)}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				heard.end <- err
				return
			}
			heard.first.Store(true)
			heard.knowsSettled.Store(m.GetKnowsSettled())
			refuse(m.GetRefused())
		}
	}()
	return heard
}

// differences lists the messages that bring a receiver up to date.
func differences(fleet Fleet, all bool) []*configv1.ReportRequest {
	statuses, gone := fleet.Report(all)
	var messages []*configv1.ReportRequest
	for part := range slices.Chunk(statuses, batch) {
		messages = append(messages, &configv1.ReportRequest{Proxies: part})
	}
	if len(gone) > 0 {
		if len(messages) == 0 {
			messages = append(messages, &configv1.ReportRequest{})
		}
		// In the first message, before all proxies: another identity may still use a node id that has left.
		messages[0].Disconnected = gone
	}
	if refusals := fleet.NewRefusals(all); refusals != nil {
		if len(messages) == 0 {
			messages = append(messages, &configv1.ReportRequest{})
		}
		messages[0].Refusals = refusals
	}
	return messages
}
