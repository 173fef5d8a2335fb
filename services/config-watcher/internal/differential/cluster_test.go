package differential

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"pgregory.net/rapid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes/apiservertest"
)

// hasty is a clock whose timers of a minute fire after a second: nobody waits for probes of an API server.
type hasty struct{ clock.Clock }

func (h hasty) After(d time.Duration) <-chan time.Time { return h.Clock.After(d / 60) }

// cluster is an API server and the source that reads it.
type cluster struct {
	*kubernetes.Source
	api     *apiservertest.Server
	objects map[ident]*clusterObject
	uids    int
	held    bool
}

// clusterObject is an object of the API server.
type clusterObject struct {
	uid     string
	created time.Time
	newest  drawn
	// good are the versions of which each may be in force while the newest is refused: which one depends on whether
	// a watch, or only a list, has told the source of the later ones. "" means none.
	good []string
}

// options are the versions of which one must be in force.
func (o *clusterObject) options() []string {
	if o.newest.broken {
		return o.good
	}
	return []string{o.newest.version}
}

func newCluster(r *rig, cfg apiservertest.Config) (*cluster, error) {
	for _, k := range kinds.All() {
		cfg.Kinds = append(cfg.Kinds, schema.GroupVersionKind{Group: k.Group, Version: k.Versions[0], Kind: k.Name})
	}
	cfg.Kinds = append(cfg.Kinds, schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	c := &cluster{api: apiservertest.New(cfg), objects: map[ident]*clusterObject{}}
	var err error
	c.Source, err = kubernetes.New(kubernetes.Config{
		Cluster: "c", API: c.api.Client(), Log: testkit.Logger(r.t), Clock: hasty{clock.Real()},
		Backoff: &wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: 4},
	})
	return c, err
}

// put creates or changes an object. One that is broken gets an annotation that the API server knows nothing of.
func (c *cluster) put(d drawn, now time.Time) error {
	docs, problems := manifest.Parse("test.yaml", []byte(d.yaml))
	if err := problems.Err(); err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: docs[0].Tree}
	gvk := u.GroupVersionKind()
	delete(u.Object, "unknownField")
	if d.broken = d.broken && strings.HasSuffix(gvk.Group, ".istio.io"); d.broken {
		u.SetAnnotations(map[string]string{"internal.istio.io/parents": "a"})
	}
	o := c.objects[d.ident]
	if o == nil {
		c.uids++
		o = &clusterObject{uid: fmt.Sprint("uid-", c.uids), created: now, good: []string{""}}
		c.objects[d.ident] = o
	}
	u.SetUID(types.UID(o.uid))
	u.SetCreationTimestamp(metav1.NewTime(o.created))
	c.api.Put(u)
	if o.newest = d; !d.broken {
		o.good = append(o.good, d.version)
	}
	return nil
}

func (c *cluster) remove(id ident) {
	delete(c.objects, id)
	_, kind, _ := strings.Cut(id.kind, " ")
	c.api.Delete(schema.GroupKind{Group: id.group(), Kind: kind}, types.NamespacedName{Namespace: id.namespace, Name: id.name})
}

func (c *cluster) removeNamespace(name string) {
	c.api.DeleteNamespace(name)
	maps.DeleteFunc(c.objects, func(id ident, _ *clusterObject) bool {
		return id.namespace == name || id.kind == "v1 Namespace" && id.name == name
	})
}

// trouble draws something that the API server or the network does, and returns its name.
func (c *cluster) trouble(rt *rapid.T) string {
	what := rapid.SampledFrom([]string{"hold", "hold", "bookmark", "cut", "expire", "away"}).Draw(rt, "trouble")
	switch what {
	case "hold":
		c.held = !c.held
		c.api.Hold(c.held)
	case "bookmark":
		c.api.Bookmark()
	case "cut":
		c.api.Cut()
	case "expire":
		c.api.Expire()
	case "away":
		c.api.Away(true)
	}
	return what
}

// calm ends all trouble. So that it can be told when the source has seen the newest state of a refused object, an
// object of the same kind is changed after it: a kind's changes arrive in order.
func (c *cluster) calm(serial *int, now time.Time) error {
	c.held = false
	c.api.Hold(false)
	c.api.Away(false)
	kinds := map[string]bool{}
	for id, o := range c.objects {
		kinds[id.kind] = kinds[id.kind] || o.newest.broken
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if !kinds[kind] {
			continue
		}
		*serial++
		id := ident{kind, "apps", "marker"}
		d := drawn{ident: id, version: fmt.Sprint("v", *serial)}
		d.yaml = manifestOf(id, []string{version + ": " + d.version}, bodies[kind][0](1))
		if err := c.put(d, now); err != nil {
			return err
		}
	}
	return nil
}

// agreed takes over which versions are in force: the source knows them.
func (c *cluster) agreed(inForce map[ident]string) {
	for id, o := range c.objects {
		switch {
		case !o.newest.broken:
			o.good = []string{o.newest.version}
		case slices.Contains(o.good, inForce[id]) && inForce[id] != "":
			o.good = []string{inForce[id]}
		}
	}
}
