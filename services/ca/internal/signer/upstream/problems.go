package upstream

import (
	"errors"
	"maps"
	"slices"
	"sync"
)

// Problems is what is wrong with a signer while it goes on issuing, by the part that is wrong. The zero value has none.
// It is safe for concurrent use.
type Problems struct {
	mu sync.Mutex
	by map[string]error
}

// Set notes what is wrong with a part, or with nil that nothing is. It reports whether that is other news than the
// last, so that the same problem is logged once.
func (p *Problems) Set(part string, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.by[part]
	if err == nil {
		delete(p.by, part)
		return last != nil
	}
	if p.by == nil {
		p.by = map[string]error{}
	}
	p.by[part] = err
	return last == nil || last.Error() != err.Error()
}

// Problem returns all of them, or nil.
func (p *Problems) Problem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []error
	for _, part := range slices.Sorted(maps.Keys(p.by)) {
		all = append(all, p.by[part])
	}
	return errors.Join(all...)
}
