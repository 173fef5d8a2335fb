package mcs_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/mcs"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/status"
)

const (
	ordinary = "cart.shop.svc.cluster.local"
	together = "cart.shop.svc.clusterset.local"
)

var clusters = []string{"east", "south", "west"}

// cart is Service shop/cart of one cluster, with one endpoint on its port http; nil fields of a world mean that there
// is none.
type cart struct {
	external, headless, sticky, nodeLocal bool
	// more is the number of a further port "more"; 0 for none.
	more int32
	age  int
}

type imported struct {
	headless bool
	ips      []string
}

// world is what three clusters have.
type world struct {
	carts   map[string]*cart
	exports map[string]int // ages
	imports map[string]*imported
	// pods counts the Pods that each cluster's endpoint has been: the last byte of its address.
	pods map[string]int
}

func (w *world) usable(cluster string) bool {
	return w.carts[cluster] != nil && !w.carts[cluster].external
}

// exporting lists the clusters with a valid export, the oldest first.
func (w *world) exporting() []string {
	var out []string
	for _, c := range clusters {
		if _, ok := w.exports[c]; ok && w.usable(c) {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(w.exports[a], w.exports[b]) })
	return out
}

// firstFor orders clusters as the control plane of one sees them.
func firstFor(own string) []string {
	return append([]string{own}, slices.DeleteFunc(slices.Clone(clusters), func(c string) bool { return c == own })...)
}

// deciding is the cluster whose import decides for the control plane of a cluster; "" if there is no host.
func (w *world) deciding(own string) string {
	if !slices.ContainsFunc(clusters, w.usable) {
		return ""
	}
	for _, c := range firstFor(own) {
		if i := w.imports[c]; i != nil && (i.headless || len(i.ips) > 0) {
			return c
		}
	}
	return ""
}

// endpoints are those that clients in a cluster use at a host, as the control plane of a cluster sees it.
func (w *world) endpoints(own, client, host string, strict bool) []string {
	if host == together && w.deciding(own) == "" {
		return nil
	}
	if host == ordinary {
		decides := own
		if w.carts[own] == nil {
			decides = ""
			for _, c := range clusters {
				if w.carts[c] != nil && (decides == "" || w.carts[c].age < w.carts[decides].age) {
					decides = c
				}
			}
		}
		if decides == "" || w.carts[decides].external {
			return nil
		}
	}
	var out []string
	for i, c := range clusters {
		_, exported := w.exports[c]
		if w.usable(c) && (c == client || exported && (host == together || !strict)) {
			out = append(out, fmt.Sprintf("10.%d.0.%d", i, w.pods[c]))
		}
	}
	return out
}

// conditions are what the export of a cluster is told.
func (w *world) conditions(cluster string) string {
	switch {
	case w.carts[cluster] == nil:
		return "Valid=False NoService, Ready=False Pending, Conflict=False NoConflicts"
	case w.carts[cluster].external:
		return "Valid=False InvalidServiceType, Ready=False Pending, Conflict=False NoConflicts"
	}
	var differ []string
	note := func(reason string, of func(*cart) any) {
		values := map[any]bool{}
		for _, c := range w.exporting() {
			values[of(w.carts[c])] = true
		}
		if len(values) > 1 {
			differ = append(differ, reason)
		}
	}
	note("PortConflict", func(c *cart) any { return c.more })
	note("TypeConflict", func(c *cart) any { return c.headless })
	note("SessionAffinityConflict", func(c *cart) any { return c.sticky })
	note("SessionAffinityConfigConflict", func(c *cart) any { return c.sticky })
	note("InternalTrafficPolicyConflict", func(c *cart) any { return c.nodeLocal })
	out := "Valid=True Valid, Ready=True Exported, Conflict="
	if len(differ) == 0 {
		return out + "False NoConflicts"
	}
	return out + "True " + strings.Join(differ, ",")
}

// properties are those of the host of all clusters: its ports, whether it is sticky, and its addresses by cluster.
func (w *world) properties(own string) string {
	decides := w.deciding(own)
	if decides == "" {
		return ""
	}
	from := w.exporting()
	if len(from) == 0 {
		for _, c := range firstFor(own) {
			if w.usable(c) {
				from = []string{c}
				break
			}
		}
	}
	more := int32(0)
	for _, c := range from {
		more = cmp.Or(more, w.carts[c].more)
	}
	out := fmt.Sprintf("more=%d sticky=%v local=%v headless=%v", more, w.carts[from[0]].sticky, w.carts[from[0]].nodeLocal,
		w.imports[decides].headless)
	for _, c := range clusters {
		if i := w.imports[c]; i != nil && (i.headless || len(i.ips) > 0) {
			ips := i.ips
			if w.imports[decides].headless || i.headless {
				ips = nil
			}
			out += fmt.Sprintf(" %s=%v", c, ips)
		}
	}
	return out
}

// Objects of a cluster, as the control plane of own reads them.

func key(own, cluster, group, kind, name string) object.Key {
	k := object.Key{Group: group, Kind: kind, Namespace: "shop", Name: name, Cluster: cluster}
	if cluster == own {
		k.Cluster = ""
	}
	return k
}

func born(age int) time.Time { return time.Unix(1_700_000_000+int64(age), 0) }

func made(k object.Key, version string, age int, body any) normalise.Change {
	return normalise.Change{Key: k, Object: &object.Object{Key: k, APIVersion: version, Created: born(age), UID: "u", Generation: 1,
		Source: "kubernetes", Body: body}}
}

func (w *world) service(own, cluster string) normalise.Change {
	k, c := key(own, cluster, "", "Service", "cart"), w.carts[cluster]
	if c == nil {
		return normalise.Change{Key: k}
	}
	s := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "192.0.2.1", ClusterIPs: []string{"192.0.2.1"},
		Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	switch {
	case c.external:
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
	case c.headless:
		s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	}
	if c.sticky {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(60))}}
	}
	if c.nodeLocal {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if c.more > 0 {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: c.more})
	}
	return made(k, "v1", c.age, s)
}

func (w *world) slice(own, cluster string) normalise.Change {
	k := key(own, cluster, kinds.GroupDiscovery, "EndpointSlice", "cart-1")
	if !w.usable(cluster) {
		return normalise.Change{Key: k}
	}
	c := made(k, "discovery.k8s.io/v1", 0, &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.%d.0.%d", slices.Index(clusters, cluster), w.pods[cluster])}}},
		Ports:     []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}}})
	c.Object.Labels = map[string]string{discoveryv1.LabelServiceName: "cart"}
	return c
}

func (w *world) export(own, cluster string) normalise.Change {
	k := key(own, cluster, kinds.GroupMCS, kinds.ServiceExport, "cart")
	age, ok := w.exports[cluster]
	if !ok {
		return normalise.Change{Key: k}
	}
	return made(k, "multicluster.x-k8s.io/v1beta1", age, &mcsv1beta1.ServiceExport{})
}

func (w *world) importOf(own, cluster string) normalise.Change {
	k := key(own, cluster, kinds.GroupMCS, kinds.ServiceImport, "cart")
	i := w.imports[cluster]
	if i == nil {
		return normalise.Change{Key: k}
	}
	in := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Name: "cart"}}
	in.Spec.Type, in.Spec.IPs = mcsv1beta1.ClusterSetIP, i.ips
	if i.headless {
		in.Spec.Type = mcsv1beta1.Headless
	}
	return made(k, "multicluster.x-k8s.io/v1beta1", 0, in)
}

// change changes one thing of one cluster at random, and returns the objects that show it.
func (w *world) change(r *rand.Rand) func(own string) []normalise.Change {
	c := clusters[r.IntN(len(clusters))]
	switch r.IntN(7) {
	case 6: // of its endpoint alone
		w.pods[c]++
		return func(own string) []normalise.Change { return []normalise.Change{w.slice(own, c)} }
	case 0:
		delete(w.carts, c)
	case 1, 2:
		w.carts[c] = &cart{external: r.IntN(6) == 0, headless: r.IntN(4) == 0, sticky: r.IntN(4) == 0, nodeLocal: r.IntN(5) == 0,
			more: []int32{0, 0, 81, 82}[r.IntN(4)], age: r.IntN(9)}
	case 3:
		if _, ok := w.exports[c]; ok {
			delete(w.exports, c)
			break
		}
		w.exports[c] = r.IntN(4)
	case 4:
		w.exports[c] = r.IntN(4)
	case 5:
		if w.imports[c] != nil {
			delete(w.imports, c)
			break
		}
		w.imports[c] = &imported{headless: r.IntN(3) == 0}
		if r.IntN(3) > 0 && !w.imports[c].headless {
			w.imports[c].ips = []string{fmt.Sprintf("198.51.100.%d", 1+r.IntN(9))}
		}
	}
	return func(own string) []normalise.Change {
		all := []normalise.Change{w.service(own, c), w.slice(own, c), w.export(own, c), w.importOf(own, c)}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return all
	}
}

// sink keeps the newest statuses.
type sink map[object.Key]*status.Status

func (s sink) Put(to status.Target, st *status.Status) bool { s[to.Key] = st; return true }
func (s sink) Forget(k object.Key)                          { delete(s, k) }
func (s sink) Failure() error                               { return nil }

// plane is the control plane of a cluster.
type plane struct {
	own      string
	table    *mcs.Table
	mesh     *normalise.Mesh
	held     map[resource.Key]*configv1.Resource
	statuses sink
	// discovered is what the last change was to the mesh.
	discovered []normalise.Change
}

func newPlane(own string, c mcs.Config) *plane {
	p := &plane{own: own, mesh: normalise.New(normalise.Config{Cluster: own}), held: map[resource.Key]*configv1.Resource{}, statuses: sink{}}
	c.Cluster, c.Domain = own, "cluster.local"
	c.Next = func(_ context.Context, changes []normalise.Change) {
		delta := p.mesh.Apply(changes)
		for _, r := range delta.Upserts {
			decoded, err := resource.Decoded(r)
			if err != nil {
				panic(err)
			}
			p.held[resource.KeyOf(r.Key)] = decoded
		}
		for _, k := range delta.Removed {
			delete(p.held, k)
		}
		p.discovered = delta.Discovered
	}
	p.table = mcs.NewTable(c)
	return p
}

// submit takes over changes, and what the pipeline tells after its commit.
func (p *plane) submit(t *testing.T, changes []normalise.Change) {
	p.table.Submit(t.Context(), changes)
	p.table.Discovered(p.discovered, p.mesh.Settings(), map[string]status.Sink{"kubernetes": p.statuses})
}

// endpoints are those that clients in a cluster see on port 80 of a host.
func (p *plane) endpoints(client, host string) []string {
	var out []string
	for k, r := range p.held {
		set := r.GetEndpointSet()
		if k.Kind != resource.KindEndpointSet || set.GetHostname() != host || set.GetPort() != 80 ||
			set.GetClusterOnly() && set.GetCluster() != client {
			continue
		}
		for _, e := range set.GetEndpoints() {
			out = append(out, e.GetAddress())
		}
	}
	slices.Sort(out)
	return out
}

// properties are those of the host of all clusters in the form of the model.
func (p *plane) properties() string {
	r := p.held[resource.Key{Kind: resource.KindService, Namespace: "shop", Name: together}]
	if r == nil {
		return ""
	}
	svc := r.GetService()
	more := uint32(0)
	for _, port := range svc.GetPorts() {
		if port.GetName() == "more" {
			more = port.GetNumber()
		}
	}
	out := fmt.Sprintf("more=%d sticky=%v local=%v headless=%v", more, svc.GetSessionAffinityClientIp(), svc.GetNodeLocal(), svc.GetHeadless())
	for _, c := range svc.GetClusterAddresses() {
		out += fmt.Sprintf(" %s=%v", c.GetCluster(), c.GetAddresses())
	}
	return out
}

// compare says what the model has otherwise; "" if nothing.
func (p *plane) compare(w *world, strict bool) string {
	for _, client := range clusters {
		for _, host := range []string{ordinary, together} {
			if got, want := p.endpoints(client, host), w.endpoints(p.own, client, host, strict); !slices.Equal(got, want) {
				return fmt.Sprintf("clients in %s have %v at %s, want %v", client, got, host, want)
			}
		}
	}
	if got, want := p.properties(), w.properties(p.own); got != want {
		return fmt.Sprintf("the host is %q, want %q", got, want)
	}
	got, want := "", ""
	for _, st := range p.statuses {
		var texts []string
		for _, c := range st.Conditions {
			texts = append(texts, c.Type+"="+c.Text()+" "+c.Reason)
		}
		got += strings.Join(texts, ", ")
	}
	if _, exported := w.exports[p.own]; exported {
		want = w.conditions(p.own)
	}
	if got != want {
		return fmt.Sprintf("the export is told %q, want %q", got, want)
	}
	return ""
}

// TestRandomExports: after each of 12 random changes in three clusters, 500 times, the control plane of each serves the
// endpoints, hosts and conditions that the model says.
func TestRandomExports(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		strict := seed%3 == 0
		planes := map[string]*plane{}
		for _, own := range clusters {
			planes[own] = newPlane(own, mcs.Config{Discovery: true, Hosts: true, Strict: strict})
		}
		w := &world{carts: map[string]*cart{}, exports: map[string]int{}, imports: map[string]*imported{}, pods: map[string]int{}}
		for step := range 12 {
			objects := w.change(r)
			for _, own := range clusters {
				p := planes[own]
				p.submit(t, objects(own))
				if problem := p.compare(w, strict); problem != "" {
					t.Fatalf("seed %d, step %d, control plane of %s: %s (%s)", seed, step, own, problem, w)
				}
			}
		}
	}
}

func (w *world) String() string {
	var out []string
	for _, c := range clusters {
		age, exported := w.exports[c]
		out = append(out, fmt.Sprintf("%s: %+v, exported %v %d, imports %+v", c, w.carts[c], exported, age, w.imports[c]))
	}
	return strings.Join(out, "; ")
}
