package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/kube"
)

// clusterFlagNames are the flags that choose a cluster: any of them means the mesh of a cluster.
var clusterFlagNames = []string{"kubeconfig", "context", "as", "as-group", "istioNamespace", "revision"}

// registerCluster adds the flags that name a cluster, for a command that works with its mesh as with one of this
// machine.
func (t *target) registerCluster(cmd *cobra.Command) {
	t.cluster.add(cmd)
	cmd.Flags().StringVar(&t.revision, "revision", "", "only the control plane of this revision (default: all)")
	cmd.PreRun = func(cmd *cobra.Command, _ []string) { t.flags = cmd.Flags() }
}

// registerConfigCluster is registerCluster for a command that shows what one config-watcher has.
func (t *target) registerConfigCluster(cmd *cobra.Command) {
	t.registerCluster(cmd)
	reads := cmd.PreRun
	cmd.PreRun = func(cmd *cobra.Command, a []string) {
		t.oneRevision = true
		reads(cmd, a)
	}
}

// controlPlane finds the control plane of the cluster if the command is to talk to one; nil if it is to talk to the
// mesh that addresses or the run directory name.
func (t *target) controlPlane(ctx context.Context) (*controlplane.Mesh, error) {
	if t.found != nil || t.flags == nil || t.address != "" || len(t.xdsAddresses) > 0 {
		return t.found, nil
	}
	var here error
	if !t.remote && !t.namesCluster() {
		if _, here = t.state(); here == nil || t.runDirNamed || t.changed("run-dir") {
			return nil, nil
		}
		if _, none := t.cluster.Rest(); none != nil {
			return nil, nil //nolint:nilerr // there is no kubeconfig: the run directory's error is told
		}
	}
	mesh, err := t.findControlPlane(ctx)
	if err != nil && here != nil {
		return nil, fmt.Errorf("%w; nor is there a mesh in the cluster of the kubeconfig: %w", here, err)
	}
	if err != nil {
		return nil, err
	}
	t.found = mesh
	return mesh, nil
}

// namesCluster reports whether a flag names a cluster.
func (t *target) namesCluster() bool {
	return t.flags != nil && slices.ContainsFunc(clusterFlagNames, t.changed)
}

func (t *target) findControlPlane(ctx context.Context) (*controlplane.Mesh, error) {
	config, err := t.cluster.Rest()
	if err != nil {
		return nil, usage(err)
	}
	api, err := kube.NewAPI(config)
	if err != nil {
		return nil, err
	}
	return controlplane.Find(ctx, config, api, t.cluster.istioNamespace, t.revision)
}

// kube returns a client of the cluster's API server; nil if the command talks to a mesh of this machine.
func (t *target) kube(ctx context.Context) (kube.API, error) {
	mesh, err := t.controlPlane(ctx)
	if err != nil || mesh == nil {
		return nil, err
	}
	return t.cluster.client()
}

func (t *target) changed(flag string) bool {
	f := t.flags.Lookup(flag)
	return f != nil && f.Changed
}

// oneOf returns a replica of a program, a ready one if there is any.
func oneOf(mesh *controlplane.Mesh, program string) (*controlplane.Replica, error) {
	all := mesh.Of(program)
	if len(all) == 0 {
		return nil, fmt.Errorf("no Pod of %s runs in namespace %s; `fairlead verify-install` says what is missing", program, mesh.Namespace)
	}
	return all[0], nil
}
