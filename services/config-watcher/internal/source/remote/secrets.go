package remote

import (
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Label marks the Secrets that name remote clusters, as in Istio.
const Label = "istio/multiCluster=true"

// entry is one key of a Secret: a cluster and its kubeconfig.
type entry struct {
	secret, id string
	created    time.Time
	kubeconfig []byte
	hash       [sha256.Size]byte
}

// String names the entry's Secret, as object.Key does.
func (e *entry) String() string { return "Secret " + e.secret }

// entriesOf lists the entries of Secrets by age: the first of an id counts.
func entriesOf(secrets map[string]*corev1.Secret) []*entry {
	var out []*entry
	for name, s := range secrets {
		for id, kubeconfig := range s.Data {
			out = append(out, &entry{secret: name, id: id, created: s.CreationTimestamp.Time, kubeconfig: kubeconfig,
				hash: sha256.Sum256(kubeconfig)})
		}
	}
	slices.SortFunc(out, func(a, b *entry) int {
		if c := a.created.Compare(b.created); c != 0 {
			return c
		}
		return strings.Compare(a.secret+" "+a.id, b.secret+" "+b.id)
	})
	return out
}

// event notes the clusters that a Secret named before an event and does not name after it.
func (c *Clusters) event(before, now *corev1.Secret) {
	if before == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range before.Data {
		stays := false
		if now != nil {
			_, stays = now.Data[id]
		}
		if !stays {
			c.lost.Deleted(id)
		}
	}
}
