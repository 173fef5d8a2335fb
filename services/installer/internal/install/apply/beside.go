package apply

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
)

// BesideRoots is the name that is proposed for the ConfigMap of the ca's roots beside an Istio.
const BesideRoots = "fairlead-ca-root-cert"

// istiods are the Deployments of Istio's control planes.
var istiods = cluster.ID{Group: "apps", Version: "v1", Kind: "Deployment"}

// beside looks for an Istio that runs in the cluster. A ca that keeps its roots where that Istio keeps its own would
// take the roots from its workloads, and the two would go on to write in turn: that is an error. With force, and if the
// right to look is missing, it is a note.
func (p *Plan) beside(ctx context.Context, c *cluster.Client, force bool) error {
	if p.RootConfigMap == "" {
		return nil
	}
	list, err := c.List(ctx, istiods, metav1.ListOptions{LabelSelector: "app=istiod,!" + ComponentLabel})
	if apierrors.IsForbidden(err) {
		p.Notes = append(p.Notes, fmt.Sprintf("whether an Istio runs in the cluster, and keeps its roots in ConfigMap %s, is not known: %v",
			p.RootConfigMap, err))
		return nil
	} else if err != nil {
		return err
	}
	for i := range list {
		if replicas, found, _ := unstructured.NestedInt64(list[i].Object, "spec", "replicas"); found && replicas == 0 {
			continue
		}
		id, revision := cluster.Of(&list[i]), cmp.Or(list[i].GetLabels()[contract.RevisionLabel], inventory.Default)
		other := ""
		if revision == p.Revision {
			other = "--revision fairlead "
		}
		if RootConfigMapOf(&list[i]) == p.RootConfigMap {
			text := fmt.Sprintf("%s, the control plane of an Istio, keeps root-cert.pem of ConfigMap %s in every namespace, and its workloads "+
				"trust what is there; the ca would write its own roots over them", id, p.RootConfigMap)
			if !force {
				return fmt.Errorf("nothing was changed: %s. To run beside it: %s--set values.global.trustBundleName=%s. To take its place, remove it "+
					"first, or replace its roots with --force", text, other, BesideRoots)
			}
			p.Notes = append(p.Notes, text)
		}
		if revision == p.Revision && id.Namespace != p.Namespace {
			p.Notes = append(p.Notes, fmt.Sprintf(
				"%s serves revision %s, too, so that objects get the statuses of both: choose another with --revision", id, revision))
		}
	}
	return nil
}

// RootConfigMapOf is the name of the ConfigMap that a Deployment of istiod keeps its roots in.
func RootConfigMapOf(u *unstructured.Unstructured) string {
	containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	for _, item := range containers {
		container, _ := item.(map[string]any)
		env, _, _ := unstructured.NestedSlice(container, "env")
		for _, item := range env {
			if v, ok := item.(map[string]any); ok && v["name"] == "PILOT_CA_CERT_CONFIGMAP" {
				return fmt.Sprint(v["value"])
			}
		}
	}
	return contract.RootConfigMap
}

// alone refuses a second revision if one of the two has a component that can only be there once.
func alone(req *Request, records []*inventory.Record) error {
	for _, r := range records {
		if r.Revision == req.Revision && r.Namespace == req.Namespace || r.State == inventory.Removed {
			continue
		}
		for _, name := range req.Alone {
			const why = "component %s has the ca in the Pod of its revision, so that there is no other revision beside it"
			if slices.Contains(req.Components, name) {
				return fmt.Errorf("nothing was changed: "+why+
					", and revision %s is installed in namespace %s: uninstall that first, or choose a profile without %s", name, r.Revision, r.Namespace,
					name)
			}
			if slices.ContainsFunc(r.Objects, func(e inventory.Entry) bool { return e.Component == name }) {
				return fmt.Errorf("nothing was changed: "+why+
					", and revision %s in namespace %s has it: uninstall that first, or install it with a profile without %s", name, r.Revision,
					r.Namespace, name)
			}
		}
	}
	return nil
}
