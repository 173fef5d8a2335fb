package app

import (
	"cmp"
	"context"
	"path/filepath"

	"fairlead.dev/services/ca/internal/accounts"
	"fairlead.dev/services/ca/internal/kube"
)

// keysFile is the file in --ca-dir that holds the API server's keys without --jwks-file.
const keysFile = "kubernetes-jwks.json"

// membership is what the ca knows of its callers: the keys and the issuer of their tokens, of flags or of the cluster.
type membership struct {
	jwksFile, issuer string
	// clustersFile has those of remote clusters; "" where there are none.
	clustersFile string
	// accounts and bans are nil outside of Kubernetes.
	accounts *accounts.Registry
	bans     *accounts.Bans
}

// connect returns the clients of the cluster, nil without --kubernetes.
func (s *Server) connect(to connect) (*kube.Cluster, error) {
	if !s.cfg.Kubernetes {
		return nil, nil //nolint:nilnil // there is no cluster
	}
	return to()
}

// beside names what must have the roots of a generation and holds no certificate of the mesh. It is asked for the
// newest generation only; before that is published here, nobody has it.
func (s *Server) beside(epoch, generation uint64) []string {
	if b, _ := s.publisher.Current(); b == nil || b.Epoch < epoch || b.Epoch == epoch && b.Generation < generation {
		return []string{"the trust bundle, which is not published yet"}
	}
	cluster := s.cluster.Load()
	switch {
	case cluster != nil:
		return cluster.Behind()
	case s.cfg.Kubernetes:
		return []string{"the cluster, which the ca has not read yet"}
	}
	return nil
}

// joinCluster takes keys and issuer of tokens from the API server, with --kubernetes, and adds the tasks that keep the
// cluster's ConfigMaps.
func (s *Server) joinCluster(ctx context.Context, clients *kube.Cluster) (*membership, error) {
	if !s.cfg.Kubernetes {
		return &membership{jwksFile: s.cfg.JWKSFile, issuer: s.cfg.Issuer, clustersFile: s.cfg.RemoteClustersFile}, nil
	}
	file := cmp.Or(s.cfg.JWKSFile, filepath.Join(s.cfg.Dir, keysFile))
	clustersFile := cmp.Or(s.cfg.RemoteClustersFile, filepath.Join(filepath.Dir(file), kube.ClustersKey))
	cluster, issuer, err := kube.Discover(ctx, kube.Config{
		API: clients.API, Raw: clients.Raw, Namespaces: s.cfg.KeysNamespaces, KeysFile: file, RootConfigMap: s.cfg.RootConfigMap,
		Namespace: s.cfg.namespace, ClustersFile: clustersFile, TrustDomain: s.cfg.trustDomain,
		Clock: s.Clock, Log: s.Log, Roots: func() (string, <-chan struct{}) {
			bundle, changed := s.publisher.Current()
			return bundle.PEM, changed
		},
	})
	if err != nil {
		return nil, err
	}
	cluster.InitClusters(ctx)
	s.Task("token keys of the cluster", cluster.RunKeys)
	s.Task("token keys of remote clusters", cluster.RunClusters)
	s.Task("root of trust in every namespace", cluster.RunRoots)
	s.Task("webhook configurations of the cluster", cluster.RunWebhooks)
	s.cluster.Store(cluster)
	m := &membership{
		jwksFile: file, issuer: issuer, clustersFile: clustersFile, accounts: accounts.New(clients.Metadata, s.Clock),
		bans: accounts.NewBans(clients.Dynamic, s.Clock, s.cfg.needed()...),
	}
	s.Task("service accounts and Pods of the cluster", m.accounts.Run)
	s.Task("deleted Pods", func(ctx context.Context) error { return m.accounts.RunDeleted(ctx, s.holders.Pods, s.holders.Gone) })
	s.Task("identity bans", m.bans.Run)
	return m, nil
}
