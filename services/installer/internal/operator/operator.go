// Package operator reconciles IstioOperator resources of a cluster: `fairlead operator`. Open wires the process; of
// several replicas the one with the lease runs a reconciler (leader.go, pkg/lease), which takes resources from a queue
// (reconciler.go) and makes each the cluster's with the engine of `fairlead install` (reconcile.go, remove.go).
// claim.go says whose a revision is, owned.go watches what was installed, and status.go writes what has become of a
// resource.
package operator

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/version"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/local/programs"
	"fairlead.dev/services/installer/internal/meshrules"
	"fairlead.dev/services/installer/manifests"
)

// Operator is what all terms of a process have in common.
type Operator struct {
	*service.Process
	options *Options
	pkg     *profile.Package
	// judgeMesh judges mesh configurations; nil with a package that does not install config-watcher.
	judgeMesh install.MeshJudge
	// version is that of the program, for inventories.
	version string
	// namespaces that are watched; one empty name is all.
	namespaces []string
	// lease is that of the operators of which one works, NAMESPACE/NAME.
	lease string
	// client sends requests, watches the watches, which last longer than a request may.
	client, watches *cluster.Client
	metrics         *metrics
}

// Open wires the process of `fairlead operator`.
func Open(ctx context.Context, o *Options, deps service.Deps) (_ *Operator, err error) {
	domain, err := o.check()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	admin, err := spiffeid.FromPathf(domain, "/ns/%s/sa/%s", contract.SystemNamespace, contract.AdminAccount)
	if err != nil {
		return nil, err
	}
	op := &Operator{options: o, version: version.Info().Version, namespaces: o.namespaces(), lease: o.Namespace + "/" + LeaseName(o.Revision)}
	if op.pkg, err = openPackage(o.Manifests); err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--manifests: %w", err), process.ExitUsage)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	op.judgeMesh = meshrules.By(programs.Finder{Executable: self, Getenv: os.Getenv}, op.pkg)
	config, err := o.Rest()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	if err := op.connect(config); err != nil {
		return nil, err
	}
	op.Process, op.metrics = service.New(o.Options, deps), newMetrics(deps.Registry)
	defer func() {
		if err != nil {
			op.Close()
		}
	}()
	if err := op.ServeOps(ctx, service.Admin{ID: admin, Audience: contract.AdminAudience}); err != nil {
		return nil, err
	}
	leader, err := newLeader(op, config)
	if err != nil {
		return nil, err
	}
	op.Ops.Ready("lease", leader.election.Failure)
	op.Ops.Debug("/debug/resources", "the IstioOperators that this replica reconciles, with their revisions",
		ops.JSON(func(*http.Request) (any, error) { return leader.page(), nil }))
	op.Task("reconciler", leader.election.Run)
	return op, nil
}

func openPackage(dir string) (*profile.Package, error) {
	if dir == "" {
		return profile.Open(manifests.FS)
	}
	return profile.OpenDir(dir)
}

func (op *Operator) connect(config *rest.Config) (err error) {
	if op.client, err = cluster.Connect(config); err != nil {
		return err
	}
	lasting := rest.CopyConfig(config)
	lasting.Timeout = 0
	op.watches, err = cluster.Connect(lasting)
	return err
}
