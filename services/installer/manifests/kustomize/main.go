// Command kustomize writes deploy/kustomize from the install package: base, and the overlays that are profiles of it.
// `make generate` runs it, and hack/verify.sh compares what it writes.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/order"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/operator"
	"fairlead.dev/services/installer/internal/operator/deployment"
	"fairlead.dev/services/installer/manifests"
)

// directory is one that `kubectl apply -k` takes.
type directory struct {
	path, about, profile string
	set                  []string
	// operator has the operator in place of an installation.
	operator bool
}

var directories = []directory{
	{"base", "The control plane in namespace istio-system: profile minimal, without an autoscaler.", "minimal",
		[]string{"values.xdsServer.autoscaleEnabled=false"}, false},
	{"overlays/compact", "All services in one Pod: profile compact.", "compact", nil, false},
	{"overlays/ha", "A control plane that survives the loss of a node: profile ha, without gateways.", "ha",
		[]string{"components.ingressGateways[0].name=istio-ingressgateway", "components.ingressGateways[0].enabled=false"}, false},
	{"overlays/revision", "The control plane as revision canary, which reads only the objects of its own.", "minimal",
		[]string{"values.xdsServer.autoscaleEnabled=false", "revision=canary"}, false},
	{"overlays/split-namespaces", "Each service in a namespace of its own.", "minimal", []string{"values.xdsServer.autoscaleEnabled=false",
		"components.ca.namespace=fairlead-ca", "components.xdsServer.namespace=fairlead-xds"}, false},
	{"overlays/operator", "The operator in namespace istio-operator, as fairlead operator init installs it, for the IstioOperators of all " +
		"namespaces.", "", nil, true},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: kustomize DIR, which is deploy/kustomize")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "kustomize:", err)
		os.Exit(1)
	}
}

func run(to string) error {
	pkg, err := profile.Open(manifests.FS)
	if err != nil {
		return err
	}
	for _, d := range directories {
		if err := d.write(pkg, filepath.Join(to, filepath.FromSlash(d.path))); err != nil {
			return fmt.Errorf("%s: %w", d.path, err)
		}
	}
	return nil
}

// write writes a directory with one for each component, and in these a file for each kind. What was there goes.
func (d directory) write(pkg *profile.Package, to string) error {
	objects, err := d.objects(pkg)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	files := map[string][]*manifest.Object{}
	var names []string
	for _, o := range objects {
		chart := o.Component
		if c := pkg.Component(chart); c != nil {
			chart = filepath.Base(c.Chart)
		}
		if o.Kind() == "CustomResourceDefinition" && !d.operator {
			continue // deploy/crds has them
		}
		name := filepath.Join(chart, fileOf(o.Kind()))
		if files[name] == nil {
			names = append(names, name)
		}
		files[name] = append(files[name], o)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := writeFile(filepath.Join(to, name), files[name]); err != nil {
			return err
		}
	}
	text := "# " + d.about + " Written by make generate, from the charts of services/installer/manifests.\n" +
		"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
	for _, name := range names {
		text += "  - " + filepath.ToSlash(name) + "\n"
	}
	return os.WriteFile(filepath.Join(to, "kustomization.yaml"), []byte(text), 0o644) //nolint:gosec // to be committed
}

// objects are those of the directory.
func (d directory) objects(pkg *profile.Package) ([]*manifest.Object, error) {
	if d.operator {
		return deployment.Settings{Namespace: operator.DefaultNamespace}.Objects(pkg)
	}
	result, err := install.Generate(install.Inputs{Inputs: merge.Inputs{Profile: d.profile, Set: d.set}, Package: pkg})
	if err != nil {
		return nil, err
	}
	if len(result.Warnings) > 0 {
		return nil, errors.New(strings.Join(result.Warnings, "\n"))
	}
	return result.Objects, nil
}

// fileOf names the file of a kind: rights are in one.
func fileOf(kind string) string {
	switch kind {
	case "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding":
		return "rbac.yaml"
	}
	return strings.ToLower(kind) + ".yaml"
}

func writeFile(path string, objects []*manifest.Object) error {
	text, err := order.Text(objects)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // to be committed
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644) //nolint:gosec // to be committed
}
