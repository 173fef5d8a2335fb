package keeper

import (
	"bytes"
	"context"
	"sync"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
)

// progress says which roots have been written everywhere.
type progress struct {
	notify.Notifier
	mu    sync.Mutex
	roots []byte
}

// done is called when these roots have been written.
func (p *progress) done(roots []byte) {
	p.mu.Lock()
	p.roots = roots
	p.mu.Unlock()
	p.Notify()
}

func (p *progress) has(roots []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Equal(p.roots, roots)
}

// wait returns once the roots of now have been written, or when ctx ends.
func (p *progress) wait(ctx context.Context, roots tlsconf.Source) error {
	for {
		changed, written := roots.Changed(), p.Changed()
		if now, err := roots.Current(); err == nil && p.has(now.RootsPEM) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-written:
		}
	}
}
