package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/go-jose/go-jose/v4"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/proto/fairlead/caapi"
)

// ClustersKey is the key of fairlead-jwks with the remote clusters whose tokens count.
const ClustersKey = "remote-clusters.json"

// clusterSelector chooses the ConfigMaps of remote clusters.
const clusterSelector = clusterkeys.Label + "=true"

// clusters is what the ConfigMaps in the ca's namespace say of remote clusters.
type clusters struct {
	mu sync.Mutex
	// good is the last good content by the name of the ConfigMap; inherited is that of the last run by the cluster's
	// name.
	good, inherited map[string]clusterkeys.Cluster
	rows            []caapi.RemoteCluster
	// document is what the file and fairlead-jwks are to have; nil while the ConfigMaps are not read and no last run
	// has left any.
	document []byte
	// unread is why the ConfigMaps cannot be read, and unreadAt the version of those that were read before.
	unread   error
	unreadAt string
	// changed has a token when document has changed.
	changed chan struct{}
}

// InitClusters begins with the remote clusters of the last run, and reads the ConfigMaps once, so that the ca takes
// their tokens from the start. ConfigMaps that cannot be read hold nothing up: RunClusters tries again.
func (s *Sync) InitClusters(ctx context.Context) {
	c := &s.clusters
	c.good, c.inherited = map[string]clusterkeys.Cluster{}, map[string]clusterkeys.Cluster{}
	raw, err := fileio.Read(s.cfg.ClustersFile, clusterkeys.MaxDocument)
	if err == nil {
		last, err := clusterkeys.Read(raw)
		if err != nil {
			s.cfg.Log.Warn("the remote clusters of the last run cannot be read and are left out", "file", s.cfg.ClustersFile, "error", err)
		} else {
			c.document = raw
		}
		for _, one := range last {
			c.inherited[one.Name] = one
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		s.cfg.Log.Warn("the remote clusters of the last run cannot be read and are left out", "file", s.cfg.ClustersFile, "error", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := s.cfg.API.CoreV1().ConfigMaps(s.cfg.Namespace).List(ctx, metav1.ListOptions{LabelSelector: clusterSelector})
	if err != nil {
		s.clustersUnread(ctx, nil, err)
		return
	}
	var maps []*corev1.ConfigMap
	for i := range list.Items {
		maps = append(maps, &list.Items[i])
	}
	s.tryClusters(maps)
}

func (s *Sync) tryClusters(maps []*corev1.ConfigMap) {
	if err := s.applyClusters(maps); err != nil {
		s.cfg.Log.Error("remote clusters not taken over, the last ones stay", "error", err)
	}
}

// RunClusters follows the ConfigMaps of remote clusters until ctx ends.
func (s *Sync) RunClusters(ctx context.Context) error {
	informer := coreinformers.NewFilteredConfigMapInformer(s.cfg.API, s.cfg.Namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.LabelSelector = clusterSelector
	})
	woken := make(chan struct{}, 1)
	err := informer.SetWatchErrorHandlerWithContext(s.clustersUnread)
	wake := func(any) { notify.Wake(woken) }
	if _, add := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, v any) { wake(v) },
		DeleteFunc: wake}); err != nil || add != nil {
		return errors.Join(err, add)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil // ctx has ended
	}
	for first := true; ; first = false {
		s.clustersRead(informer.LastSyncResourceVersion(), first)
		var maps []*corev1.ConfigMap
		for _, v := range informer.GetStore().List() {
			if m, ok := v.(*corev1.ConfigMap); ok {
				maps = append(maps, m)
			}
		}
		s.tryClusters(maps)
		select {
		case <-ctx.Done():
			return nil
		case <-woken:
		case <-s.cfg.Clock.After(keysPeriod): // a file that could not be written is tried again
		}
	}
}

func (s *Sync) clustersUnread(_ context.Context, from *cache.Reflector, err error) {
	s.clusters.mu.Lock()
	first := s.clusters.unread == nil
	s.clusters.unread = err
	if from != nil {
		s.clusters.unreadAt = from.LastSyncResourceVersion()
	}
	s.clusters.mu.Unlock()
	if first {
		s.cfg.Log.Warn("ConfigMaps of remote clusters cannot be read: those that were read before stay; the ca must be allowed to list and "+
			"watch configmaps in its namespace", "namespace", s.cfg.Namespace, "error", err)
	}
}

// clustersRead is told the version of the ConfigMaps that were read last, and whether their first list has just come,
// of which the informer tells the version only a moment later.
func (s *Sync) clustersRead(version string, first bool) {
	s.clusters.mu.Lock()
	defer s.clusters.mu.Unlock()
	if first || version != s.clusters.unreadAt {
		s.clusters.unread = nil
	}
}

// applyClusters makes the ConfigMaps count.
func (s *Sync) applyClusters(maps []*corev1.ConfigMap) error {
	c := &s.clusters
	c.mu.Lock()
	defer c.mu.Unlock()
	keys, err := fileio.Read(s.cfg.KeysFile, maxDocument)
	if err != nil {
		return fmt.Errorf("keys of the own cluster: %w", err)
	}
	own, err := clusterkeys.ParseSet(keys)
	if err != nil {
		return fmt.Errorf("keys of the own cluster: %w", err)
	}
	maps = slices.DeleteFunc(maps, func(m *corev1.ConfigMap) bool { return m.Labels[clusterkeys.Label] != "true" })
	taken, rows, good := s.takeClusters(maps, own)
	document, err := clusterkeys.Write(taken)
	if err != nil {
		return err
	}
	if string(document) != string(c.document) || c.rows == nil {
		if err := fileio.Write(s.cfg.ClustersFile, document, 0o600); err != nil {
			return err
		}
	}
	for _, row := range rows {
		if before := slices.IndexFunc(c.rows, func(r caapi.RemoteCluster) bool { return r.ConfigMap == row.ConfigMap }); before >= 0 &&
			c.rows[before].State == row.State && c.rows[before].Problem == row.Problem && slices.Equal(c.rows[before].Keys, row.Keys) {
			continue
		}
		if row.Problem == "" {
			s.cfg.Log.Info("tokens of a remote cluster are taken", "cluster", row.Cluster, "configmap", row.ConfigMap, "issuer", row.Issuer,
				"namespaces", row.Namespaces, "keys", row.Keys)
		} else {
			s.cfg.Log.Error("ConfigMap of a remote cluster is not in order", "cluster", row.Cluster, "configmap", row.ConfigMap, "state", row.State,
				"problem", row.Problem)
		}
	}
	for _, row := range c.rows {
		if !slices.ContainsFunc(rows, func(r caapi.RemoteCluster) bool { return r.ConfigMap == row.ConfigMap }) {
			s.cfg.Log.Info("tokens of a remote cluster are not taken any more: its ConfigMap is gone", "cluster", row.Cluster,
				"configmap", row.ConfigMap)
		}
	}
	c.good, c.rows, c.document = good, rows, document
	notify.Wake(c.changed)
	return nil
}

// takeClusters decides which remote clusters count: of each ConfigMap its content, or its last good one. Of two for one
// cluster the older counts.
func (s *Sync) takeClusters(maps []*corev1.ConfigMap, own []jose.JSONWebKey) (
	taken []clusterkeys.Cluster, rows []caapi.RemoteCluster, good map[string]clusterkeys.Cluster,
) {
	slices.SortFunc(maps, func(a, b *corev1.ConfigMap) int {
		if older := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); older != 0 {
			return older
		}
		return strings.Compare(a.Name, b.Name)
	})
	rows, good = []caapi.RemoteCluster{}, map[string]clusterkeys.Cluster{}
	size := 0
	of := map[string]string{} // the ConfigMap of each cluster
	for _, m := range maps {
		cluster, err := s.parseCluster(m)
		row := caapi.RemoteCluster{ConfigMap: m.Namespace + "/" + m.Name, Cluster: cluster.Name, State: caapi.ClusterTrusted}
		if err != nil {
			row.State, row.Problem = caapi.ClusterRefused, err.Error()
			last, ok := s.clusters.good[m.Name]
			if !ok {
				last, ok = s.clusters.inherited[cluster.Name]
			}
			if !ok {
				rows = append(rows, row)
				continue
			}
			row.Problem += "; what it said before stays in force"
			cluster = last
		}
		row.Cluster = cluster.Name
		text, _ := clusterkeys.Write([]clusterkeys.Cluster{cluster}) // it was parsed from JSON
		switch {
		case of[cluster.Name] != "":
			row.State, row.Problem = caapi.ClusterIgnored, fmt.Sprintf("ConfigMap %s, which is older, is of cluster %s, too; remove one of them",
				of[cluster.Name], cluster.Name)
		case len(taken) == clusterkeys.MaxClusters:
			row.State = caapi.ClusterIgnored
			row.Problem = fmt.Sprintf("there are more than %d remote clusters; remove some", clusterkeys.MaxClusters)
		case size+len(text) > clusterkeys.MaxDocument:
			row.State, row.Problem = caapi.ClusterIgnored,
				fmt.Sprintf("the remote clusters take more than %d bytes in all; remove keys that sign nothing any more", clusterkeys.MaxDocument)
		default:
			size += len(text)
			taken, of[cluster.Name], good[m.Name] = append(taken, cluster), row.ConfigMap, cluster
			row.Issuer, row.TrustDomain, row.Namespaces = cluster.Issuer, cluster.TrustDomain, cluster.Namespaces
			row.Keys = fingerprints(cluster)
		}
		rows = append(rows, row)
	}
	markShared(own, taken, rows)
	return taken, rows, good
}

// parseCluster reads a ConfigMap.
func (s *Sync) parseCluster(m *corev1.ConfigMap) (clusterkeys.Cluster, error) {
	c, err := clusterkeys.Parse(m.Data)
	if len(m.BinaryData) > 0 {
		err = errors.Join(err, errors.New("binaryData has no effect; write the fields into data"))
	}
	if td, bad := spiffeid.TrustDomainFromString(c.TrustDomain); bad == nil && td != s.cfg.TrustDomain {
		err = errors.Join(err, fmt.Errorf("field %s: %s is not the mesh's, %s, the only one in which there are identities; remove the field",
			clusterkeys.TrustDomainKey, td, s.cfg.TrustDomain))
	}
	return c, err
}

// markShared names the clusters that have a key of another one.
func markShared(own []jose.JSONWebKey, taken []clusterkeys.Cluster, rows []caapi.RemoteCluster) {
	shared, err := clusterkeys.Shared(own, taken)
	if err != nil {
		return // they were parsed
	}
	for sum, names := range shared {
		for i := range rows {
			row := &rows[i]
			if !slices.Contains(names, row.Cluster) || row.Keys == nil {
				continue
			}
			if row.Problem != "" {
				row.Problem += "; "
			}
			row.State = caapi.ClusterShared
			row.Problem += clusterkeys.SharedProblem(sum, names)
		}
	}
}

func fingerprints(c clusterkeys.Cluster) []string {
	keys, err := clusterkeys.PublicKeys(c.Keys)
	if err != nil {
		return nil
	}
	out := []string{}
	for _, k := range keys {
		if sum, err := clusterkeys.Fingerprint(k); err == nil {
			out = append(out, sum)
		}
	}
	slices.Sort(out)
	return out
}

// Clusters is how the remote clusters do whose tokens count, and why their ConfigMaps cannot be read, if so.
func (s *Sync) Clusters() caapi.RemoteClusters {
	s.clusters.mu.Lock()
	defer s.clusters.mu.Unlock()
	out := caapi.RemoteClusters{Clusters: slices.Clone(s.clusters.rows)}
	if s.clusters.unread != nil {
		out.Unread = s.clusters.unread.Error()
	}
	return out
}

// clusterDocument is what ClustersKey is to have, "" while that is not known.
func (s *Sync) clusterDocument() string {
	s.clusters.mu.Lock()
	defer s.clusters.mu.Unlock()
	return string(s.clusters.document)
}
