// Package report tells config-watcher what became of the configuration: per proxy what was sent, acknowledged and rejected.
package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/clock"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const (
	// gap between two messages: what happens meanwhile goes into one.
	gap = 10 * time.Millisecond
	// batch is the most proxies in one message.
	batch = 500

	firstPause = 100 * time.Millisecond
	maxPause   = 3 * time.Second
)

// Sink opens a Report; configv1.ConfigServiceClient does.
type Sink interface {
	Report(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[configv1.ReportRequest, configv1.ReportResponse], error)
}

// Fleet knows the proxies; serve.Server does.
type Fleet interface {
	// Changed is closed at the next change; it is taken before Statuses.
	Changed() <-chan struct{}
	Statuses() []*configv1.ProxyStatus
	Served() *configv1.Revision
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

// Reporter streams differences of the fleet's status.
type Reporter struct{ cfg Config }

// New checks the configuration; Run does the work.
func New(cfg Config) (*Reporter, error) {
	if cfg.Sink == nil || cfg.Fleet == nil || cfg.Subscriber == nil || cfg.Log == nil {
		return nil, errors.New("report: Sink, Fleet, Subscriber and Log are required")
	}
	cfg.Clock = clock.Or(cfg.Clock)
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	return &Reporter{cfg}, nil
}

// Run reports until ctx ends, and for ever tries again.
func (r *Reporter) Run(ctx context.Context) error {
	pause := firstPause
	for {
		sent, err := r.stream(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the stream ended because it was told to
		}
		if sent {
			pause = firstPause
		}
		wait := time.Duration(float64(pause) * (0.5 + r.cfg.Rand()))
		r.cfg.Log.Debug("report to config-watcher ended", "error", err, "retry_in", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-r.cfg.Clock.After(wait):
		}
		pause = min(pause*2, maxPause)
	}
}

// stream runs one Report; accepted is true if config-watcher took over at least one message.
func (r *Reporter) stream(ctx context.Context) (accepted bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.cfg.Sink.Report(ctx)
	if err != nil {
		return false, fmt.Errorf("open report: %w", err)
	}
	responses := make(chan error, 1)
	first := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			if _, err := stream.Recv(); err != nil {
				responses <- err
				return
			}
			if n == 0 {
				close(first)
			}
		}
	}()
	took := func() bool {
		select {
		case <-first:
			return true
		default:
			return false
		}
	}
	reported := map[string]*configv1.ProxyStatus{}
	var served *configv1.Revision
	for complete := false; ; complete = true {
		changed := r.cfg.Fleet.Changed()
		revision := r.cfg.Fleet.Served()
		for _, m := range difference(reported, r.cfg.Fleet.Statuses(), !complete || revision != served) {
			m.Revision = revision
			if !complete {
				m.Subscriber, complete = r.cfg.Subscriber, true
			}
			if err := stream.Send(m); err != nil {
				if errors.Is(err, io.EOF) {
					err = <-responses
				}
				return took(), fmt.Errorf("report: %w", err)
			}
		}
		served = revision
		select {
		case <-ctx.Done():
			return took(), ctx.Err()
		case err := <-responses:
			return took(), fmt.Errorf("report: %w", err)
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return took(), ctx.Err()
		case <-r.cfg.Clock.After(gap):
		}
	}
}

// difference lists the messages that bring a receiver from what was reported to what is now, and takes them over into reported. force
// makes at least one message.
func difference(reported map[string]*configv1.ProxyStatus, now []*configv1.ProxyStatus, force bool) []*configv1.ReportRequest {
	var messages []*configv1.ReportRequest
	current := &configv1.ReportRequest{}
	present := make(map[string]struct{}, len(now))
	for _, p := range now {
		present[p.GetNodeId()] = struct{}{}
		if held, ok := reported[p.GetNodeId()]; ok && same(held, p) {
			continue
		}
		reported[p.GetNodeId()] = p
		if current.Proxies = append(current.Proxies, p); len(current.Proxies) == batch {
			messages, current = append(messages, current), &configv1.ReportRequest{}
		}
	}
	for id := range reported {
		if _, ok := present[id]; !ok {
			delete(reported, id)
			current.Disconnected = append(current.Disconnected, id)
		}
	}
	slices.Sort(current.Disconnected)
	if len(current.Proxies) > 0 || len(current.Disconnected) > 0 || force && len(messages) == 0 {
		messages = append(messages, current)
	}
	return messages
}

// same compares what can change while a proxy is connected. Revisions are shared objects, so a pointer tells.
func same(a, b *configv1.ProxyStatus) bool {
	if a.GetAcked() != b.GetAcked() || a.GetClass() != b.GetClass() || len(a.GetTypes()) != len(b.GetTypes()) ||
		!a.GetConnectedAt().AsTime().Equal(b.GetConnectedAt().AsTime()) {
		return false
	}
	for i, t := range a.GetTypes() {
		o := b.GetTypes()[i]
		if t.GetTypeUrl() != o.GetTypeUrl() || t.GetSent() != o.GetSent() || t.GetAcked() != o.GetAcked() ||
			t.GetAwaiting() != o.GetAwaiting() || t.GetResources() != o.GetResources() || t.GetBytesSent() != o.GetBytesSent() ||
			!proto.Equal(t.GetRejection(), o.GetRejection()) {
			return false
		}
	}
	return true
}
