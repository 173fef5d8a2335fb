package precheck

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/operator/deployment"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// former are the groups of kinds that no release reads any more.
var former = []string{"authentication.istio.io", "config.istio.io", "rbac.istio.io", "install.istio.io"}

// gatewayAPI is the oldest bundle of the Gateway API whose kinds are read.
const gatewayAPI = "v1.0.0"

// definitions compares CustomResourceDefinitions with those of the installation.
func (c *checker) definitions(ctx context.Context) error {
	list, err := c.Dynamic.Resource(definitions).List(ctx, all)
	if apierrors.IsForbidden(err) {
		c.unread("CustomResourceDefinitions", err)
		return nil
	} else if err != nil {
		return err
	}
	ours := map[string]*manifest.Object{}
	for _, o := range lists.Filter(c.Objects, isDefinition) {
		ours[o.Name()] = o
	}
	gateways := false
	for i := range list.Items {
		u := &list.Items[i]
		origin := "CustomResourceDefinition " + u.GetName()
		group := tree.GetString(u.Object, "spec", "group")
		if o := ours[u.GetName()]; o != nil {
			if err := c.definition(origin, u, o); err != nil {
				return err
			}
		}
		if slices.Contains(former, group) {
			c.remaining(ctx, origin, u)
		}
		if u.GetName() == "gateways.gateway.networking.k8s.io" {
			gateways = true
			if v := u.GetAnnotations()["gateway.networking.k8s.io/bundle-version"]; v != "" && strings.HasPrefix(v, "v0.") {
				c.say(Warning, "GatewayAPIVersion", origin, "install the Gateway API "+gatewayAPI+" or newer",
					"the Gateway API is %s; its objects are read from %s on", v, gatewayAPI)
			}
		}
	}
	if !gateways && ours["gateways.gateway.networking.k8s.io"] == nil {
		c.say(Info, "GatewayAPIAbsent", "", "install its definitions if you use it: values.base.enableGatewayAPICRDs=true",
			"the Gateway API is not installed")
	}
	return nil
}

// definition compares one that is there with the installation's.
func (c *checker) definition(origin string, u *unstructured.Unstructured, ours *manifest.Object) error {
	want, err := cluster.Object(ours)
	if err != nil {
		return err
	}
	if cluster.OwnedFields(u) != "" {
		c.versions(origin, u, ours)
	} else if manager, versions, fields := apply.Lacks(u, want); len(versions) > 0 {
		c.say(Error, "VersionMissing", origin, "upgrade it there, or take it over with fairlead install --force",
			"%s manages it, and it does not serve %s", manager, strings.Join(versions, ", "))
	} else if len(fields) > 0 {
		c.say(Info, "FieldsMissing", origin, "upgrade it there, or take it over with fairlead install --force",
			"%s manages it, so that it stays as it is; it lacks %d fields of the installation's, such as %s", manager, len(fields), fields[0])
	}
	if a, b := tree.GetString(u.Object, "spec", "scope"), tree.GetString(ours.Tree, "spec", "scope"); a != b {
		c.say(Error, "ScopeDiffers", origin, "delete it, with all of its objects",
			"its scope is %s, and %s in the installation; a scope cannot change", a, b)
	}
	if release := u.GetAnnotations()["meta.helm.sh/release-name"]; release != "" {
		c.say(Info, "DefinitionOfHelm", origin, "keep it when the release is removed: `kubectl annotate crd "+u.GetName()+
			" helm.sh/resource-policy=keep`",
			"it belongs to Helm's release %s; if that is removed, the definition and all of its objects are", release)
	}
	return nil
}

// versions says whether a definition of the installation can take the place of the one that an earlier one has made.
func (c *checker) versions(origin string, u *unstructured.Unstructured, ours *manifest.Object) {
	var served []string
	versions, _ := tree.Get(ours.Tree, "spec", "versions")
	items, _ := versions.([]any)
	for _, v := range items {
		if m, ok := v.(tree.Map); ok {
			served = append(served, tree.GetString(m, "name"))
		}
	}
	stored, _, _ := unstructured.NestedStringSlice(u.Object, "status", "storedVersions")
	for _, v := range stored {
		if !slices.Contains(served, v) {
			c.say(Error, "StoredVersion", origin, fmt.Sprintf("write each object again, and then remove %s from status.storedVersions", v),
				"objects may be stored in version %s, which the installation does not define (%s); the API server would refuse it", v,
				strings.Join(served, ", "))
		}
	}
}

// remaining looks for objects of a kind that nothing reads.
func (c *checker) remaining(ctx context.Context, origin string, u *unstructured.Unstructured) {
	versions := served(u)
	if len(versions) == 0 {
		return
	}
	r := schema.GroupVersionResource{Group: tree.GetString(u.Object, "spec", "group"), Version: versions[0],
		Resource: tree.GetString(u.Object, "spec", "names", "plural")}
	list, err := c.Dynamic.Resource(r).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		c.unread("objects of "+u.GetName(), err)
		return
	}
	if len(list.Items) == 0 {
		return
	}
	remedy := "migrate them, delete them, and then the definition"
	if r.Group == "install.istio.io" {
		own, err := c.API.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: deployment.Label, Limit: 1})
		if err != nil {
			c.unread("operators", err)
			return
		}
		if len(own.Items) > 0 {
			return // Fairlead's operator reads them
		}
		remedy = "`fairlead manifest migrate` reads it; stop Istio's operator, if one runs, before you install"
	}
	more := ""
	if list.GetContinue() != "" {
		more = " and others"
	}
	c.say(Warning, "FormerKind", origin, remedy, "nothing reads objects of this kind any more; there is %s%s", list.Items[0].GetName(), more)
}

func served(u *unstructured.Unstructured) []string {
	versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	var names []string
	for _, v := range versions {
		if m, ok := v.(map[string]any); ok && m["served"] == true {
			names = append(names, fmt.Sprint(m["name"]))
		}
	}
	return names
}
