package sds

import (
	"context"
	"fmt"
	"slices"
	"sync"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"fairlead.dev/pkg/notify"
)

// rootStreams knows which version of ROOTCA each stream has acknowledged. It notifies of changes.
type rootStreams struct {
	notify.Notifier
	mu      sync.Mutex
	streams map[*rootStream]struct{}
}

// rootStream is what one stream has of ROOTCA. Its methods are called by the stream's goroutine.
type rootStream struct {
	of *rootStreams
	// subscribed says that the client has asked for ROOTCA.
	subscribed bool
	// nonce is that of the last response that had ROOTCA, in this version.
	nonce, sent string
	// acked is the version that the client uses; refused is one that it does not take, for this reason.
	acked, refused, reason string
}

func (r *rootStreams) begin() *rootStream {
	s := &rootStream{of: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams == nil {
		r.streams = map[*rootStream]struct{}{}
	}
	r.streams[s] = struct{}{}
	return s
}

// change makes a change of the stream, and notifies of it.
func (s *rootStream) change(f func()) {
	s.of.mu.Lock()
	f()
	s.of.mu.Unlock()
	s.of.Notify()
}

func (s *rootStream) end() { s.change(func() { delete(s.of.streams, s) }) }

// ask notes whether the client is subscribed to ROOTCA.
func (s *rootStream) ask(subscribed bool) {
	if subscribed != s.subscribed {
		s.change(func() { s.subscribed, s.acked, s.refused = subscribed, "", "" })
	}
}

// holds notes the version that the client states to hold.
func (s *rootStream) holds(version string) {
	if version != "" {
		s.change(func() { s.acked = version })
	}
}

// push notes a response that has ROOTCA.
func (s *rootStream) push(nonce, version string) {
	s.change(func() { s.nonce, s.sent = nonce, version })
}

// answer notes the client's answer to a response.
func (s *rootStream) answer(nonce string, problem *rpcstatus.Status) {
	if nonce == "" || nonce != s.nonce {
		return
	}
	s.change(func() {
		s.nonce = ""
		if problem == nil {
			s.acked, s.refused = s.sent, ""
		} else {
			s.refused, s.reason = s.sent, problem.GetMessage()
		}
	})
}

// use reports whether every stream that has asked for ROOTCA uses this version, or the error of one that refuses it.
func (r *rootStreams) use(version string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := true
	for s := range r.streams {
		if s.subscribed && s.refused == version {
			return false, fmt.Errorf("envoy refuses the roots: %s", s.reason)
		}
		all = all && (!s.subscribed || s.acked == version)
	}
	return all, nil
}

// RootsInUse returns nil when Envoy has acknowledged the roots of now, on all streams on which it has asked for them;
// at once if it has asked on none. The error is Envoy's reason to refuse them, or that of ctx.
func (s *Server) RootsInUse(ctx context.Context) error {
	for {
		changed, news := s.source.Changed(), s.roots.Changed()
		own := s.own()
		i := slices.IndexFunc(own, isRoots)
		if i < 0 {
			return nil
		}
		if used, err := s.roots.use(own[i].version); used || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-news:
		}
	}
}

func isRoots(r *resource) bool { return r.name == RootCA }

// pushRoots notes ROOTCA of a response.
func (s *rootStream) pushRoots(nonce string, sent []*resource) {
	if i := slices.IndexFunc(sent, isRoots); i >= 0 {
		s.push(nonce, sent[i].version)
	}
}
