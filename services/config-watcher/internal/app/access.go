package app

import (
	"cmp"
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// rootNamespace caches MeshConfig's root namespace, by the hash of the MeshConfig.
type rootNamespace struct {
	revisions *revision.Log

	mu         sync.Mutex
	hash, name string
}

// current is the root namespace of the newest revision; "" before the first.
func (r *rootNamespace) current() string {
	snapshot, _ := r.revisions.Current()
	res := snapshot.Get(resource.Key{Kind: resource.KindMeshConfig, Name: "default"})
	r.mu.Lock()
	defer r.mu.Unlock()
	if hash := string(res.GetHash()); hash != r.hash {
		settings := &mesh.MeshConfig{}
		if res.GetMeshConfig().GetSettings().UnmarshalTo(settings) == nil {
			r.hash, r.name = hash, settings.GetRootNamespace()
		}
	}
	return r.name
}

// follow calls do with the root namespace, kinds.MeshNamespace before it is known, and again with another one when it
// has changed: then the context of the call before has ended. It returns when ctx has ended, or with do's error.
func (r *rootNamespace) follow(ctx context.Context, do func(ctx context.Context, namespace string) error) error {
	for ctx.Err() == nil {
		namespace := cmp.Or(r.current(), kinds.MeshNamespace)
		now, cancel := context.WithCancel(ctx)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			defer cancel()
			for {
				_, changed := r.revisions.Current()
				if cmp.Or(r.current(), kinds.MeshNamespace) != namespace {
					return
				}
				select {
				case <-now.Done():
					return
				case <-changed:
				}
			}
		}()
		err := do(now, namespace)
		cancel()
		<-watched
		if err != nil {
			return err
		}
	}
	return nil
}

// sight is what callers see of the fleet: xds-servers and other replicas see all proxies, other callers those of the
// namespaces whose objects they may list.
func (c *config) sight(roles *access.Access) fleet.Sight {
	return func(ctx context.Context, namespace string) (func(string) bool, error) {
		p, err := access.Caller(ctx)
		if err != nil {
			return nil, err
		}
		if p.ID == c.xdsServer || p.ID == c.own {
			return nil, nil //nolint:nilnil // all
		}
		may := func(namespace string) error {
			return roles.May(p.ID.String(), access.List, object.Key{Kind: "Proxy", Namespace: namespace})
		}
		err = roles.Anywhere(p.ID.String(), access.List)
		if namespace != "" {
			err = may(namespace)
		}
		if err != nil {
			return nil, status.Error(codes.PermissionDenied, err.Error())
		}
		return func(namespace string) bool { return may(namespace) == nil }, nil
	}
}
