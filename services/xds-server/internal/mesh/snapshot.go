package mesh

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/credential"
)

// Snapshot is the mesh at one revision. It is immutable and safe for concurrent use.
type Snapshot struct {
	revision *configv1.Revision
	// generation is one more than that of the snapshot that this one was made from.
	generation uint64
	mesh       *meshSettings
	// kinds has every resource by kind, and then by "<namespace>/<name>".
	kinds map[string]index[*entry]

	// What is indexed, by the parts of the key. "visibility" is configv1.Service.audience, "age" the creation time.
	services  index[*configv1.Service]     // hostname, namespace, visibility
	exported  index[*configv1.Service]     // exported to, service namespace, hostname, visibility
	endpoints index[*configv1.EndpointSet] // hostname, port, namespace, visibility, cluster
	addressed index[*configv1.Service]     // port, address, protocol, hostname, namespace, visibility
	clustered index[int]                   // "": number of Services that look different to clients of different clusters
	networks  index[*configv1.Service]     // network, hostname, namespace, visibility: Services that lead into it
	suffixes  index[int]                   // exported to, hostname backwards: number of services

	gatewayRoutes          index[*VirtualService]        // exported to, gateway, age, namespace, name
	hostRoutes             index[*VirtualService]        // gateway, host, age, namespace, name
	destinations           index[*VirtualService]        // host sent to, age, namespace, name: those of sidecars
	destinationRules       index[*DestinationRule]       // namespace, host, age, name
	credentialUses         index[int]                    // exported to, credentialName: number of DestinationRules
	credentialSelectors    index[*DestinationRule]       // namespace, name: with a credentialName and a workload selector
	gateways               index[*Gateway]               // first label of the selector, age, namespace, name
	autoPassthrough        index[int]                    // "": number of Gateways with a server of mode AUTO_PASSTHROUGH
	sidecars               index[*Sidecar]               // namespace, age, name
	peerAuthentications    index[*PeerAuthentication]    // namespace, age, name
	authorizationPolicies  index[*AuthorizationPolicy]   // namespace, age, name
	requestAuthentications index[*RequestAuthentication] // namespace, age, name
	envoyFilters           index[*EnvoyFilter]           // exported to, patch context, age, namespace, name
	proxyMatches           index[*ProxyMatch]            // exported to, namespace and name of the EnvoyFilter, id

	gatewayListeners index[*GatewayListeners] // namespace, first label of the selection, age, namespace, name, kind
	attachedRoutes   index[*HostRoute]        // listener, domain, kind, namespace, name
	attachedDomains  index[int]               // listener, domain: number of routes
	routedHosts      index[int]               // domain or "*": number of attachments of routes
	serviceRoutes    index[*AttachedRoute]    // hostname, client's namespace, port, kind, namespace, name
	routedPorts      index[int]               // port, client's namespace: number of routes of HTTP attached to services
	udpBackends      index[int]               // hostname: number of destinations of UDPRoutes
	grpcBackends     index[int]               // hostname, port: number of destinations of GRPCRoutes
	backendTLS       index[*BackendTLS]       // hostname, port, age, namespace, name

	addresses      index[*configv1.Workload] // address, namespace, name
	accounts       index[int]                // namespace, service account: number of workloads
	relevantLabels index[int]                // namespace, "*" or rootSelectors, label key: number of objects that test it
	private        index[int]                // namespace, topic: number of objects

	// credentials are beside the revision, see WithCredentials.
	credentials *credential.Set
	// signedBundle is beside the revision, too.
	signedBundle *cav1.SignedBundle
}

// Change is what one revision changed.
type Change struct {
	// Topics whose answers may differ from those of the snapshot before.
	Topics Topics
	// Private lists, by namespace, the topics that have joined or left what Snapshot.Private says.
	Private map[string]Topics
	// Keys that were added, changed or removed.
	Keys []Key
	// Rejected names resources that could not be decoded; their last good version stays.
	Rejected []error
}

// Merge adds the change of a later revision to c.
func (c *Change) Merge(later *Change) {
	c.Topics = c.Topics.joined(later.Topics)
	for namespace, topics := range later.Private {
		if c.Private == nil {
			c.Private = map[string]Topics{}
		}
		c.Private[namespace] = c.Private[namespace].joined(topics)
	}
	c.Keys = append(c.Keys, later.Keys...)
	c.Rejected = append(c.Rejected, later.Rejected...)
}

// Empty returns the snapshot before the first revision: it has no resources, and the mesh settings are the defaults.
func Empty() *Snapshot { return &Snapshot{mesh: defaultSettings()} }

// FromResources builds a snapshot from scratch and computes the hashes that are absent. It is for tests and offline
// tools.
func FromResources(resources []*configv1.Resource) (*Snapshot, error) {
	s, change := Empty().Apply(nil, resources, nil)
	return s, errors.Join(change.Rejected...)
}

// Apply returns the snapshot after a revision, and what the revision changes. A resource whose hash is equal to the
// one held is unchanged. Apply costs O(len(upserts)+len(removed)). Only one goroutine may apply revisions to a snapshot
// and to those made from it; the messages become part of the snapshot and must not be changed any more.
func (s *Snapshot) Apply(revision *configv1.Revision, upserts []*configv1.Resource, removed []*configv1.ResourceKey) (*Snapshot, *Change) {
	next := *s
	next.generation++
	next.kinds = make(map[string]index[*entry], len(s.kinds))
	maps.Copy(next.kinds, s.kinds)
	if revision != nil {
		next.revision = revision
	}
	change := &Change{Topics: Topics{}, Private: map[string]Topics{}}
	w := &writer{next: &next, topics: change.Topics, private: change.Private}
	for _, k := range removed {
		key := KeyOf(k)
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
	w.touchTurned()
	return &next, change
}

// Revision returns the revision of the snapshot; nil before the first.
func (s *Snapshot) Revision() *configv1.Revision { return s.revision }

// Generation grows with each snapshot that is made from another by Apply.
func (s *Snapshot) Generation() uint64 { return s.generation }

// Len returns the number of resources.
func (s *Snapshot) Len() int {
	n := 0
	for _, x := range s.kinds {
		n += x.len()
	}
	return n
}

// Held lists what the snapshot holds, in the form in which a client resumes ConfigService.Watch: sorted keys and their
// hashes for each kind, in parts of at most maxKeys keys.
func (s *Snapshot) Held(maxKeys int) []*configv1.Held {
	var parts []*configv1.Held
	for _, kind := range sortedKeys(s.kinds) {
		var part *configv1.Held
		s.kinds[kind].scan("", func(path string, e *entry) bool {
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
	if e, ok := s.kinds[key.Kind].get(key.path()); ok {
		return hex.EncodeToString(e.hash[:])
	}
	return ""
}

// String describes the snapshot for logs.
func (s *Snapshot) String() string {
	return fmt.Sprintf("revision %s/%d with %d resources", s.revision.GetEpoch(), s.revision.GetSequence(), s.Len())
}

// lookup returns the value of one resource, nil if there is none.
func lookup[T any](s *Snapshot, key Key) (value T) {
	if e, ok := s.kinds[key.Kind].get(key.path()); ok {
		value = e.value.(T)
	}
	return value
}
