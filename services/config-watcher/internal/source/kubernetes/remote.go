package kubernetes

import (
	"context"
	"maps"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

// remoteKinds are read of a remote cluster: as in Istio, no configuration of the mesh. Every API server has them. The
// kinds of the Multi-Cluster Services API, which Config.MultiCluster adds, are looked for as in the own cluster.
var remoteKinds = map[schema.GroupKind]served{
	{Kind: "Namespace"}: {"v1", "namespaces"},
	{Kind: "Node"}:      {"v1", "nodes"},
	{Kind: "Pod"}:       {"v1", "pods"},
	{Kind: "Service"}:   {"v1", "services"},
	{Group: kinds.GroupDiscovery, Kind: "EndpointSlice"}: {"v1", "endpointslices"},
}

// startRemote watches the kinds of a remote cluster that are known to be served. It is called with mu held.
func (s *Source) startRemote() {
	for _, k := range s.kinds {
		if (k.served != served{}) {
			s.start(k, types.NamespacedName{})
		}
	}
}

// isLookedFor reports whether discovery says if the API server has the kind.
func (s *Source) isLookedFor(gk schema.GroupKind, k *kind) bool {
	_, everywhere := remoteKinds[gk]
	return !k.byName() && (!s.cfg.Remote || !everywhere)
}

// Reconnect reads from now on as another configuration says: rotated credentials, or another address. What has been
// delivered stays until the first lists of the new connection say otherwise. It is for remote clusters.
func (s *Source) Reconnect(cfg *rest.Config) error {
	api, err := newClients(cfg)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.newest = 0 // it may be another API server
	old := s.api.Swap(api)
	if s.ctx != nil {
		s.startRemote()
	}
	s.mu.Unlock()
	s.gate.reset()
	old.http.CloseIdleConnections()
	return nil
}

// Forget delivers that everything is gone, and removes the saved state. It is called after Run has returned.
func (s *Source) Forget(ctx context.Context) {
	var endpoints, others []source.Event
	for _, k := range s.sortedKinds() {
		for _, name := range slices.SortedFunc(maps.Keys(k.objects), compareNames) {
			if gone := (source.Event{Key: k.key(name)}); k.lane == laneEndpoints {
				endpoints = append(endpoints, gone)
			} else {
				others = append(others, gone)
			}
		}
		clear(k.objects)
	}
	for _, list := range [][]source.Event{endpoints, others} {
		for batch := range slices.Chunk(list, maxEvents) {
			s.handler(ctx, s.name, batch)
		}
	}
	s.api.Load().http.CloseIdleConnections()
	RemoveSaved(s.cfg.Saved, s.cfg.Cluster)
}

// RemoveSaved removes the saved state of a remote cluster. saved may be nil.
func RemoveSaved(saved *lastgood.Dir, cluster string) {
	if saved == nil {
		return
	}
	name := NamePrefix + cluster
	saved.Remove(filepath.Join(name, readMark))
	all := slices.Collect(maps.Keys(remoteKinds))
	for _, kind := range kinds.NamesOf(kinds.GroupMCS) {
		all = append(all, schema.GroupKind{Group: kinds.GroupMCS, Kind: kind})
	}
	for _, gk := range all {
		k := kind{source: name, desc: kinds.Kind{Group: gk.Group, Name: gk.Kind}}
		for shard := range shards {
			saved.Remove(k.shardFile(shard))
		}
	}
}
