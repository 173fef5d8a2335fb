package migrate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// Objects are what a cluster has of an installation of Istio.
type Objects struct {
	// Namespace of the control plane.
	Namespace string
	// Revision to migrate; empty takes the only one that there is.
	Revision string
	// ConfigMaps and HPAs of the namespace, and what is in all namespaces of the others.
	ConfigMaps  []corev1.ConfigMap
	Deployments []appsv1.Deployment
	DaemonSets  []appsv1.DaemonSet
	Services    []corev1.Service
	HPAs        []autoscalingv2.HorizontalPodAutoscaler
}

const (
	labelApp  = "app"
	unrevised = "default"
)

// Cluster migrates an installation that runs.
func Cluster(o Objects, pkg *profile.Package) (*Result, error) {
	istiod, revision, err := o.istiod()
	if err != nil {
		return nil, err
	}
	r := &Result{Spec: start()}
	for _, component := range []string{"base", "pilot"} {
		tree.Put(r.Spec, true, "components", component, "enabled")
	}
	values, err := r.values(o, suffix(revision))
	if err != nil {
		return nil, err
	}
	if o.Namespace != profileNamespace {
		tree.Put(values, o.Namespace, "global", "istioNamespace")
	}
	if revision != unrevised {
		r.Spec["revision"] = revision
		delete(values, "revision")
	}
	if err := r.mesh(o, suffix(revision), values); err != nil {
		return nil, err
	}
	r.images(istiod, values)
	r.workload(o, istiod, "discovery", values, []string{"pilot"}, "components", "pilot")
	r.Spec["values"] = values
	r.gateways(o, values)
	r.nodes(o, istiod)
	return r, r.again(pkg)
}

// profileNamespace is where an installation is unless its values say another.
const profileNamespace = "istio-system"

func suffix(revision string) string {
	if revision == unrevised {
		return ""
	}
	return "-" + revision
}

// istiod finds the control plane to migrate.
func (o Objects) istiod() (*appsv1.Deployment, string, error) {
	found := map[string]*appsv1.Deployment{}
	var revisions []string
	for i := range o.Deployments {
		d := &o.Deployments[i]
		if d.Namespace != o.Namespace || d.Spec.Template.Labels[labelApp] != "istiod" {
			continue
		}
		revision := d.Labels[contract.RevisionLabel]
		if revision == "" {
			revision = unrevised
		}
		found[revision] = d
		revisions = append(revisions, revision)
	}
	slices.Sort(revisions)
	switch {
	case len(revisions) == 0:
		return nil, "", fmt.Errorf("namespace %s has no istiod: no Deployment whose Pods have the label app=istiod; name the namespace of the "+
			"control plane with -i", o.Namespace)
	case o.Revision != "" && found[o.Revision] == nil:
		return nil, "", fmt.Errorf("namespace %s has no istiod of revision %q; there are %s", o.Namespace, o.Revision,
			strings.Join(revisions, ", "))
	case o.Revision != "":
		return found[o.Revision], o.Revision, nil
	case len(revisions) > 1:
		return nil, "", fmt.Errorf("namespace %s has several revisions, %s; name one with --revision", o.Namespace, strings.Join(revisions, ", "))
	}
	return found[revisions[0]], revisions[0], nil
}

func (o Objects) configMap(name string) *corev1.ConfigMap {
	i := slices.IndexFunc(o.ConfigMaps, func(c corev1.ConfigMap) bool { return c.Name == name && c.Namespace == o.Namespace })
	if i < 0 {
		return nil
	}
	return &o.ConfigMaps[i]
}

// values reads the values that the control plane was installed with.
func (r *Result) values(o Objects, suffix string) (tree.Map, error) {
	for _, from := range []struct{ name, key string }{{"values" + suffix, "original-values"}, {"istio-sidecar-injector" + suffix, "values"}} {
		c := o.configMap(from.name)
		if c == nil || c.Data[from.key] == "" {
			continue
		}
		values, err := tree.ParseMap([]byte(c.Data[from.key]))
		if err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %s: %w", o.Namespace, from.name, from.key, err)
		}
		if from.key == "values" {
			r.warn("ConfigMap %s/%s: the values are those for injection, with the defaults of their release; other values of the control plane "+
				"are not known: read what comes out", o.Namespace, from.name)
		}
		return r.below(Values{File: "ConfigMap " + from.name, Chart: Istiod, Tree: values}), nil
	}
	return nil, fmt.Errorf("namespace %s has neither ConfigMap values%s nor istio-sidecar-injector%s, which hold the values of the "+
		"installation; migrate its values files with -f", o.Namespace, suffix, suffix)
}

// written are fields that Istio's chart writes into the mesh configuration by itself.
var written = []string{
	"defaultConfig.discoveryAddress", "defaultConfig.tracing", "defaultConfig.image", "defaultProviders", "extensionProviders",
	"enablePrometheusMerge",
	"rootNamespace", "trustDomain", "enableTracing",
}

// mesh reads the mesh configuration in force: a change of it counts more than the values that it was made from.
func (r *Result) mesh(o Objects, suffix string, values tree.Map) error {
	c := o.configMap("istio" + suffix)
	if c == nil {
		return nil
	}
	mesh, err := tree.ParseMap([]byte(c.Data["mesh"]))
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: mesh: %w", o.Namespace, c.Name, err)
	}
	said := tree.GetMap(values, "meshConfig")
	for _, change := range tree.Changes(said, mesh) {
		path, err := tree.ParsePath(change.Path)
		if err != nil || change.Removed ||
			change.Added && slices.ContainsFunc(written, func(w string) bool { return change.Path == w || strings.HasPrefix(change.Path, w+".") }) {
			continue
		}
		if change.Added && change.Path == "defaultConfig" {
			if table, ok := change.Second.(tree.Map); ok && len(leavesBut(table, written)) == 0 {
				continue
			}
		}
		if slices.ContainsFunc(path, func(s tree.Step) bool { return s.Selector != nil }) {
			r.warn("ConfigMap %s/%s: mesh: %s is not as the values of the installation say; the values count", o.Namespace, c.Name, change.Path)
			continue
		}
		r.warn("ConfigMap %s/%s: mesh: %s is not as the values of the installation say; what is in force counts", o.Namespace, c.Name,
			change.Path)
		if values["meshConfig"] == nil {
			values["meshConfig"] = tree.Map{}
		}
		if err := tree.Set(values["meshConfig"].(tree.Map), path, change.Second); err != nil {
			return fmt.Errorf("ConfigMap %s/%s: mesh: %w", o.Namespace, c.Name, err)
		}
	}
	return nil
}

// leavesBut lists the leaves of defaultConfig that the chart does not write by itself.
func leavesBut(m tree.Map, known []string) []string {
	return slices.DeleteFunc(leaves(m, "defaultConfig"), func(path string) bool {
		return slices.ContainsFunc(known, func(w string) bool { return path == w || strings.HasPrefix(path, w+".") })
	})
}

// images reads hub and tag from istiod's image.
func (r *Result) images(d *appsv1.Deployment, values tree.Map) {
	image := ""
	for _, c := range d.Spec.Template.Spec.Containers {
		if c.Name == "discovery" {
			image = c.Image
		}
	}
	if full := tree.GetString(values, "pilot", "image"); strings.Contains(full, "/") {
		return // the values name the whole image
	}
	at := strings.LastIndex(image, "/")
	name, tag, ok := strings.Cut(image[at+1:], ":")
	if at < 0 || !ok || strings.Contains(tag, "@") || strings.Contains(name, "@") {
		r.warn("Deployment %s/%s: the image %q of container discovery has no hub or no tag; set hub and tag", d.Namespace, d.Name, image)
		return
	}
	if variant := tree.GetString(values, "global", "variant"); variant != "" {
		tag = strings.TrimSuffix(tag, "-"+variant)
	}
	if tree.GetString(values, "pilot", "hub") == "" {
		tree.Put(values, image[:at], "global", "hub")
	}
	if v, ok := tree.Get(values, "pilot", "tag"); !ok || !filled(v) {
		tree.Put(values, tag, "global", "tag")
	}
}

// nodes says what is migrated of what runs on every node.
func (r *Result) nodes(o Objects, istiod *appsv1.Deployment) {
	for _, d := range o.DaemonSets {
		switch d.Name {
		case "istio-cni-node":
			tree.Put(r.Spec, true, "components", "cni", "enabled")
			if d.Namespace != istiod.Namespace {
				tree.Put(r.Spec, d.Namespace, "components", "cni", "namespace")
			}
			r.warn("DaemonSet %s/%s: the values of the cni chart are not in the cluster; migrate its values file with -f cni=FILE, too, and join "+
				"the two", d.Namespace, d.Name)
		case "ztunnel":
			r.warn("DaemonSet %s/%s is not migrated: Fairlead has no ambient mode", d.Namespace, d.Name)
		}
	}
}

var errNoHPA = errors.New("no such HorizontalPodAutoscaler")

func (o Objects) hpa(namespace, name string) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	i := slices.IndexFunc(o.HPAs, func(h autoscalingv2.HorizontalPodAutoscaler) bool {
		return h.Namespace == namespace && h.Spec.ScaleTargetRef.Name == name
	})
	if i < 0 {
		return nil, errNoHPA
	}
	return &o.HPAs[i], nil
}
