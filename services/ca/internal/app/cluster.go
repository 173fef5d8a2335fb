package app

import (
	"cmp"
	"context"
	"path/filepath"
	"strings"

	"fairlead.dev/services/ca/internal/accounts"
	"fairlead.dev/services/ca/internal/kube"
)

// keysFile is the file in --ca-dir that holds the API server's keys without --jwks-file.
const keysFile = "kubernetes-jwks.json"

// joinCluster takes keys and issuer of tokens from the API server, with --kubernetes, and adds the tasks that keep the
// cluster's ConfigMaps.
func (s *Server) joinCluster(ctx context.Context) error {
	if !s.cfg.Kubernetes {
		return nil
	}
	clients, err := s.cluster()
	if err != nil {
		return err
	}
	file := cmp.Or(s.cfg.JWKSFile, filepath.Join(s.cfg.Dir, keysFile))
	cluster, issuer, err := kube.Discover(ctx, kube.Config{
		API: clients.API, Raw: clients.Raw, Namespaces: s.cfg.KeysNamespaces, KeysFile: file, RootConfigMap: s.cfg.RootConfigMap,
		Roots: s.rootsPEM, Clock: s.Clock, Log: s.Log,
	})
	if err != nil {
		return err
	}
	s.cfg.JWKSFile, s.cfg.Issuer = file, issuer
	s.Task("token keys of the cluster", cluster.RunKeys)
	s.Task("root of trust in every namespace", cluster.RunRoots)
	s.accounts = accounts.New(clients.Metadata, s.Clock)
	s.bans = accounts.NewBans(clients.Dynamic, s.Clock, s.cfg.needed()...)
	s.Task("service accounts and Pods of the cluster", s.accounts.Run)
	s.Task("identity bans", s.bans.Run)
	return nil
}

func (s *Server) rootsPEM() (string, <-chan struct{}) {
	bundle, changed := s.publisher.Current()
	return strings.Join(bundle.Roots, ""), changed
}
