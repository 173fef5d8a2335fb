package app_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	secretv1 "fairlead.dev/proto/fairlead/secret/v1"

	"fairlead.dev/pkg/testkit"
)

// secretsFake is config-watcher's half of SecretService: a set of credentials by "<namespace>/<name>". While it is held
// it answers nothing.
type secretsFake struct {
	secretv1.UnimplementedSecretServiceServer

	mu      sync.Mutex
	known   map[string]*secretv1.Credential
	held    bool
	version int
	changed chan struct{}
	// followed are the subscriptions of all streams, asked all that ever were.
	followed, asked map[string]int
}

// change runs f with the lock held and tells the streams.
func (f *secretsFake) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		f.known, f.followed, f.asked, f.changed = map[string]*secretv1.Credential{}, map[string]int{}, map[string]int{}, make(chan struct{})
	}
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// put stores a credential; nil removes it.
func (f *secretsFake) put(name string, c *secretv1.Credential) {
	f.change(func() {
		if c == nil {
			delete(f.known, name)
			return
		}
		f.version++
		c.Version = fmt.Sprint(f.version)
		f.known[name] = c
	})
}

func (f *secretsFake) hold(held bool) { f.change(func() { f.held = held }) }

func nameOf(s *secretv1.Subscription) string { return s.GetNamespace() + "/" + s.GetName() }

func (f *secretsFake) Watch(stream secretv1.SecretService_WatchServer) error {
	f.change(func() {})
	var mu sync.Mutex
	subscribed, sent := map[string]*secretv1.Subscription{}, map[string]string{}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	go func() {
		defer cancel()
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			f.change(func() {
				mu.Lock()
				defer mu.Unlock()
				for _, s := range m.GetUnsubscribe() {
					delete(subscribed, nameOf(s))
					delete(sent, nameOf(s))
					f.followed[nameOf(s)]--
				}
				for _, s := range m.GetSubscribe() {
					subscribed[nameOf(s)] = s
					f.followed[nameOf(s)]++
					f.asked[nameOf(s)]++
				}
			})
		}
	}()
	for {
		var out []*secretv1.WatchResponse
		f.mu.Lock()
		mu.Lock()
		for _, name := range slices.Sorted(maps.Keys(subscribed)) {
			s := subscribed[name]
			c := f.known[name]
			if !strings.Contains(s.GetIdentity(), "/ns/"+s.GetNamespace()+"/sa/") {
				c = nil
			}
			version := "v" + c.GetVersion()
			if f.held || sent[name] == version {
				continue
			}
			sent[name] = version
			out = append(out, &secretv1.WatchResponse{Subscription: s, Credential: c})
		}
		mu.Unlock()
		changed := f.changed
		f.mu.Unlock()
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follows waits until exactly the named credentials are followed.
func (f *secretsFake) follows(t *testing.T, want ...string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		var got []string
		for name, n := range f.followed {
			if n > 0 {
				got = append(got, name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("followed: %v, want %v", got, want)
		}
		return nil
	})
}

// everAsked lists what was ever subscribed to.
func (f *secretsFake) everAsked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.asked))
}
