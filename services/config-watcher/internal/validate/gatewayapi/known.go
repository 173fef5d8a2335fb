package gatewayapi

import (
	"crypto/sha256"
	"sync"

	"fairlead.dev/services/config-watcher/internal/manifest"
)

// known remembers objects that have passed every rule, by the hash of their content, because the rules take a
// millisecond for an object: the store judges one several times, and a file is judged whole after a change of one
// object in it. It is safe for concurrent use.
type known struct {
	mu       sync.Mutex
	new, old map[[sha256.Size]byte]struct{}
}

// maxKnown bounds one of the two generations: together they take about 2 MB.
const maxKnown = 16 << 10

// passed are the objects of this process.
var passed known

// hash is that of a filled object, whose kind and version it has; ok is false if it cannot be encoded.
func hash(tree map[string]any) (sum [sha256.Size]byte, ok bool) {
	js, err := manifest.AppendJSON(nil, tree)
	return sha256.Sum256(js), err == nil
}

func (k *known) has(sum [sha256.Size]byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.new[sum]; ok {
		return true
	}
	_, ok := k.old[sum]
	if ok {
		k.add(sum)
	}
	return ok
}

func (k *known) put(sum [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.add(sum)
}

// add is called with mu held.
func (k *known) add(sum [sha256.Size]byte) {
	if len(k.new) >= maxKnown {
		k.old, k.new = k.new, nil
	}
	if k.new == nil {
		k.new = map[[sha256.Size]byte]struct{}{}
	}
	k.new[sum] = struct{}{}
}
