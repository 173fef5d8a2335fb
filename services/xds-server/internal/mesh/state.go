package mesh

import (
	"encoding/hex"
	"errors"
	"fmt"
	"sort"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/credential"
)

// Snapshot is the mesh at one revision. It is immutable and safe for concurrent use.
type Snapshot struct {
	revision *configv1.Revision
	mesh     *meshSettings
	// kinds holds every resource by kind and then by "<namespace>/<name>".
	kinds map[string]index[*entry]

	services        index[*entry] // hostname, namespace, audience
	exported        index[*entry] // exported to, service namespace, hostname, audience
	endpoints       index[*entry] // hostname, port, namespace, audience, cluster
	gatewayRoutes   index[*VirtualService]
	hostRoutes      index[*VirtualService]
	destinations    index[*VirtualService]  // host sent to, age, namespace, name: those of sidecars
	rules           index[*DestinationRule] // namespace, host, age, name
	sidecars        index[*Sidecar]         // namespace, age, name
	authentications index[*PeerAuthentication]
	gateways        index[*Gateway]     // first selector pair, age, namespace, name
	meshGateways    int                 // Gateways with a server that passes mesh TLS through
	networks        index[*entry]       // network, hostname, namespace, audience: Services that lead into it
	addresses       index[*entry]       // address, namespace, name
	accounts        index[int]          // namespace, service account: number of workloads
	selected        index[int]          // scope, label key: number of selectors
	places          index[*entry]       // port, address, protocol, hostname, namespace, audience
	suffixes        index[int]          // exported to, hostname backwards: number of services
	privates        index[int]          // namespace, topic: number of objects
	patches         index[*EnvoyFilter] // exported to, place, age, namespace, name
	conditions      index[*ProxyMatch]  // exported to, namespace and name of the EnvoyFilter, id

	credentialUses      index[int]              // exported to, credentialName: number of DestinationRules
	credentialSelectors index[*DestinationRule] // namespace, name: those with a credentialName and a workload selector

	// credentials are beside the revision, see WithCredentials.
	credentials *credential.Set
}

// Change is what one revision changed.
type Change struct {
	// Topics whose answers may differ from the state before.
	Topics Topics
	// Private lists, by namespace, the topics that have joined or left what State.Private says.
	Private map[string]Topics
	// Keys that were added, changed or removed.
	Keys []Key
	// Rejected names resources that could not be decoded; their last good version stays.
	Rejected []error
}

// Merge joins the change of a later revision to c.
func (c *Change) Merge(later *Change) {
	if c.Topics == nil {
		c.Topics = Topics{}
	}
	for t := range later.Topics {
		c.Topics.Add(t)
	}
	for namespace, topics := range later.Private {
		if c.Private == nil {
			c.Private = map[string]Topics{}
		}
		if c.Private[namespace] == nil {
			c.Private[namespace] = Topics{}
		}
		for t := range topics {
			c.Private[namespace].Add(t)
		}
	}
	c.Keys = append(c.Keys, later.Keys...)
	c.Rejected = append(c.Rejected, later.Rejected...)
}

// Empty returns the state before the first revision: nothing in it, the mesh settings all defaults.
func Empty() *Snapshot {
	return &Snapshot{
		mesh:     defaultMesh(),
		kinds:    map[string]index[*entry]{},
		services: newIndex[*entry](), exported: newIndex[*entry](), endpoints: newIndex[*entry](),
		gatewayRoutes: newIndex[*VirtualService](), hostRoutes: newIndex[*VirtualService](), destinations: newIndex[*VirtualService](),
		rules: newIndex[*DestinationRule](), sidecars: newIndex[*Sidecar](),
		authentications: newIndex[*PeerAuthentication](), gateways: newIndex[*Gateway](),
		networks: newIndex[*entry](), addresses: newIndex[*entry](), accounts: newIndex[int](), selected: newIndex[int](),
		places: newIndex[*entry](), suffixes: newIndex[int](), privates: newIndex[int](),
		patches: newIndex[*EnvoyFilter](), conditions: newIndex[*ProxyMatch](), credentialUses: newIndex[int](),
		credentialSelectors: newIndex[*DestinationRule](),
	}
}

// FromResources builds a state from scratch; hashes that are absent are computed. It is for tests and offline tools.
func FromResources(resources []*configv1.Resource) (*Snapshot, error) {
	s, change := Empty().Apply(nil, resources, nil)
	return s, errors.Join(change.Rejected...)
}

// Apply returns the state after a revision, and what changed. Resources whose hash is equal to the one held count as unchanged.
// It costs O(len(upserts)+len(removed)). Only one goroutine may apply to a state and its descendants; the messages given become part of
// the state and must not be changed any more.
func (s *Snapshot) Apply(revision *configv1.Revision, upserts []*configv1.Resource, removed []*configv1.ResourceKey) (*Snapshot, *Change) {
	next := s.fork()
	if revision != nil {
		next.revision = revision
	}
	change := &Change{Topics: Topics{}, Private: map[string]Topics{}}
	w := &writer{state: next, forked: map[string]bool{}, topics: change.Topics, private: change.Private}
	for _, k := range removed {
		key := keyOf(k)
		if w.replace(key, nil) {
			change.Keys = append(change.Keys, key)
		}
	}
	for _, r := range upserts {
		e, err := decode(r)
		if err != nil {
			change.Rejected = append(change.Rejected, err)
			continue
		}
		if w.replace(e.key, e) {
			change.Keys = append(change.Keys, e.key)
		}
	}
	return next, change
}

func (s *Snapshot) fork() *Snapshot {
	next := *s
	next.kinds = make(map[string]index[*entry], len(s.kinds))
	for kind, x := range s.kinds {
		next.kinds[kind] = x
	}
	next.services, next.exported, next.endpoints = s.services.fork(), s.exported.fork(), s.endpoints.fork()
	next.gatewayRoutes, next.hostRoutes, next.destinations = s.gatewayRoutes.fork(), s.hostRoutes.fork(), s.destinations.fork()
	next.rules, next.sidecars, next.authentications = s.rules.fork(), s.sidecars.fork(), s.authentications.fork()
	next.gateways, next.addresses, next.selected = s.gateways.fork(), s.addresses.fork(), s.selected.fork()
	next.networks, next.accounts = s.networks.fork(), s.accounts.fork()
	next.places, next.suffixes, next.privates = s.places.fork(), s.suffixes.fork(), s.privates.fork()
	next.patches, next.conditions = s.patches.fork(), s.conditions.fork()
	next.credentialUses, next.credentialSelectors = s.credentialUses.fork(), s.credentialSelectors.fork()
	return &next
}

// Revision returns the revision the state belongs to; nil before the first.
func (s *Snapshot) Revision() *configv1.Revision { return s.revision }

// Mesh returns the mesh-wide settings after defaults; never nil. The caller must not change it.
func (s *Snapshot) Mesh() *meshv1alpha1.MeshConfig { return s.mesh.settings }

// ClusterDomain returns the DNS suffix of service names, "cluster.local". MeshTopic names it too.
func (s *Snapshot) ClusterDomain() string { return s.mesh.clusterDomain }

// MeshSource returns the user's object behind Mesh; nil while only defaults apply.
func (s *Snapshot) MeshSource() *configv1.SourceRef { return s.mesh.source }

// Len returns the number of resources.
func (s *Snapshot) Len() int {
	n := 0
	for _, x := range s.kinds {
		n += x.m.Len()
	}
	return n
}

// Held lists what the state holds, in the form a Watch is resumed with: per kind sorted keys and their hashes. Parts carry at most
// maxKeys keys.
func (s *Snapshot) Held(maxKeys int) []*configv1.Held {
	kinds := make([]string, 0, len(s.kinds))
	for kind := range s.kinds {
		kinds = append(kinds, kind)
	}
	sort.Strings(kinds)
	var parts []*configv1.Held
	for _, kind := range kinds {
		var part *configv1.Held
		s.kinds[kind].m.Scan(func(path string, e *entry) bool {
			if part == nil || len(part.Keys) >= maxKeys {
				part = &configv1.Held{Kind: kind}
				parts = append(parts, part)
			}
			part.Keys = append(part.Keys, path)
			part.Hashes = append(part.Hashes, e.hash[:]...)
			return true
		})
	}
	return parts
}

// HashOf returns the hash of one resource in hexadecimal; "" where there is none.
func (s *Snapshot) HashOf(key Key) string {
	if x, ok := s.kinds[key.Kind]; ok {
		if e, ok := x.get(key.path()); ok {
			return hex.EncodeToString(e.hash[:])
		}
	}
	return ""
}

// String describes the state for logs.
func (s *Snapshot) String() string {
	return fmt.Sprintf("revision %s/%d with %d resources", s.revision.GetEpoch(), s.revision.GetSequence(), s.Len())
}
