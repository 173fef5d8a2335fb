package apply

import (
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/cluster/clustertest"
	"fairlead.dev/services/installer/internal/install/inventory"
)

// made applies an object as an installation does, and returns its entry.
func made(t *testing.T, c *cluster.Client, document string) inventory.Entry {
	t.Helper()
	u := clustertest.Object(t, document)
	if _, err := c.Apply(t.Context(), u, cluster.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	return inventory.Entry{ID: cluster.Of(u)}
}

const (
	namespaceText  = "{apiVersion: v1, kind: Namespace, metadata: {name: mesh, labels: {a: b}}}"
	definitionText = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec: {group: example.com, names: {kind: Thing}}
`
	serverText = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: server, namespace: mesh}
spec: {replicas: 1, selector: {matchLabels: {app: server}}, template: {metadata: {labels: {app: server}}}}
`
	// incidentals are what Kubernetes and the control plane make in the namespace.
	incidentals = `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: mesh}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt, namespace: mesh}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio-ca-root-cert, namespace: mesh, labels: {app.kubernetes.io/managed-by: fairlead-ca}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: server-1, namespace: mesh, labels: {app: server}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: server, uid: x}]}}
---
{apiVersion: v1, kind: Secret, metadata: {name: fairlead-installation-default, namespace: mesh, labels: {install.fairlead.dev/inventory: head}}}
---
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: leader, namespace: mesh}}
---
{apiVersion: v1, kind: Event, metadata: {name: happened, namespace: mesh}}
`
)

func TestAPurgeKeepsWhatOthersHave(t *testing.T) {
	const theirs = `
{apiVersion: apps/v1, kind: Deployment, metadata: {name: shop, namespace: mesh}}
---
{apiVersion: example.com/v1, kind: Thing, metadata: {name: mine, namespace: default}}
---
{apiVersion: example.com/v1, kind: Thing, metadata: {name: other, namespace: default}}
`
	for _, tc := range []struct {
		name, others string
		options      RemovalOptions
		fate         Fate
		reasons      []string
	}{
		{"with nothing of others all goes", "", RemovalOptions{Purge: true}, Delete, []string{"", ""}},
		{"what others have is counted, and stays", theirs, RemovalOptions{Purge: true}, Keep, []string{
			"objects that no installation has made would be lost, such as Deployment mesh/shop; there are 1; --with-contents deletes it " +
				"nevertheless",
			"objects of its kind would be lost, such as Thing default/mine; there are 2; --with-contents deletes it nevertheless",
		}},
		{"it goes where a flag says so", theirs, RemovalOptions{Purge: true, Contents: true}, Delete, []string{"there are 1", "there are 2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := clustertest.Start(t, incidentals)
			c := s.Client(t)
			rec := &inventory.Record{Revision: "default", Namespace: "mesh",
				Objects: []inventory.Entry{made(t, c, namespaceText), made(t, c, definitionText), made(t, c, serverText)}}
			s.Add(t, tc.others)
			all := []*inventory.Record{rec}
			r, err := NewRemoval(t.Context(), c, all, all, tc.options)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range r.Verdicts[:2] {
				if v.Fate != tc.fate || !strings.Contains(v.Reason, tc.reasons[i]) || tc.reasons[i] == "" && v.Reason != "" {
					t.Errorf("%s: %s, %q", v, v.Fate, v.Reason)
				}
			}
			if v := r.Verdicts[2]; v.Fate != Delete {
				t.Errorf("%s: %s, %q", v, v.Fate, v.Reason)
			}
		})
	}
}

// TestDefinitionsOfTheGatewayAPIStay: even without objects, because others may read the kind; a purge takes them.
func TestDefinitionsOfTheGatewayAPIStay(t *testing.T) {
	for _, group := range gatewayAPI {
		for purge, want := range map[bool]Fate{false: Keep, true: Delete} {
			c := clustertest.Start(t, "").Client(t)
			rec := &inventory.Record{Revision: "default", Namespace: "mesh", Objects: []inventory.Entry{
				made(t, c, strings.ReplaceAll(definitionText, "example.com", group)), made(t, c, definitionText)}}
			all := []*inventory.Record{rec}
			r, err := NewRemoval(t.Context(), c, all, all, RemovalOptions{Purge: purge})
			if err != nil {
				t.Fatal(err)
			}
			if got, other := r.Verdicts[0], r.Verdicts[1]; got.Fate != want || other.Fate != Delete {
				t.Errorf("%s, purge %v: %s %q, a definition of ours %s", group, purge, got.Fate, got.Reason, other.Fate)
			}
		}
	}
}

func TestWhoUsesARevisionIsCounted(t *testing.T) {
	s := clustertest.Start(t, `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio.io/rev: canary}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: tagged, labels: {istio.io/rev: prod}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: other, labels: {istio-injection: enabled}}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: prod, labels: {istio.io/tag: prod, istio.io/rev: canary}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, annotations: {sidecar.istio.io/status: "{}", istio.io/rev: canary}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: old, namespace: shop, annotations: {sidecar.istio.io/status: "{}", istio.io/rev: default}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: gateway, namespace: mesh, labels: {app: server}, annotations: {sidecar.istio.io/status: "{}", istio.io/rev: canary}}}
`)
	c := s.Client(t)
	rec := &inventory.Record{Revision: "canary", Namespace: "mesh", Objects: []inventory.Entry{made(t, c, serverText)}}
	all := []*inventory.Record{rec}
	r, err := NewRemoval(t.Context(), c, all, all, RemovalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uses, err := r.Uses(t.Context(), c)
	if err != nil || len(uses) != 1 ||
		!strings.HasPrefix(uses[0].String(), "1 proxies and 2 namespaces (shop, tagged) use revision canary: ") {
		t.Errorf("%v, %v", uses, err)
	}
	rec.Revision = "default"
	if uses, err = r.Uses(t.Context(), c); err != nil || len(uses) != 1 || uses[0].Proxies != 1 ||
		strings.Join(uses[0].Namespaces, " ") != "other" {
		t.Errorf("%v, %v", uses, err)
	}
	// That namespace has no label istio.io/rev that could be changed.
	if text := uses[0].String(); !strings.Contains(text, "replace the label istio-injection=enabled (other) by istio.io/rev=REVISION") {
		t.Error(text)
	}
	rec.Revision = "unused"
	if uses, err = r.Uses(t.Context(), c); err != nil || len(uses) != 0 {
		t.Errorf("%v, %v", uses, err)
	}
}

// Gateways that two revisions have ask the one that was installed last.
func TestGatewaysThatAskARevisionUseIt(t *testing.T) {
	const gateway = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: mesh}
spec: {template: {spec: {containers: [{name: istio-proxy, args: [proxy, router, "--discovery-address=SERVICE.mesh.svc:15012"]}]}}}
`
	asks := func(name, service string) string {
		return strings.NewReplacer("NAME", name, "SERVICE", service).Replace(gateway)
	}
	s := clustertest.Start(t, asks("own", "istiod-canary")+"\n---\n"+asks("other", "istiod"))
	c := s.Client(t)
	shared, alone := made(t, c, asks("ingress", "istiod-canary")), made(t, c, asks("alone", "istiod-canary"))
	service := func(name string) inventory.Entry {
		return made(t, c, "{apiVersion: v1, kind: Service, metadata: {name: "+name+", namespace: mesh}, spec: {type: ClusterIP}}")
	}
	canary := &inventory.Record{Revision: "canary", Namespace: "mesh", Objects: []inventory.Entry{service("istiod-canary"), shared, alone}}
	stays := &inventory.Record{Revision: "default", Namespace: "mesh", Objects: []inventory.Entry{service("istiod"), shared}}
	all := []*inventory.Record{canary, stays}
	r, err := NewRemoval(t.Context(), c, all[:1], all, RemovalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uses, err := r.Uses(t.Context(), c)
	if err != nil || len(uses) != 1 {
		t.Fatalf("%v, %v", uses, err)
	}
	text := uses[0].String()
	for _, want := range []string{"0 proxies, 2 gateways (Deployment mesh/ingress, Deployment mesh/own) and 0 namespaces use revision " +
		"canary: the gateways ", "run `fairlead install` of the revision that stays, with its file"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	if r, err = NewRemoval(t.Context(), c, all, all, RemovalOptions{}); err != nil {
		t.Fatal(err)
	}
	if uses, err = r.Uses(t.Context(), c); err != nil || len(uses) != 2 || strings.Join(uses[0].Gateways, " ") != "Deployment mesh/own" ||
		strings.Join(uses[1].Gateways, " ") != "Deployment mesh/other" {
		t.Errorf("of both revisions: %v, %v", uses, err)
	}

	// What is left of it is a problem of the revision that stays. As long as its Service is there, it only is not
	// ready.
	if found, err := Verify(t.Context(), c, stays); err != nil || len(found) != 1 || strings.Contains(found[0].Problem, "discovery") {
		t.Errorf("as long as the Service is there: %v, %v", found, err)
	}
	if _, err := c.Apply(t.Context(), clustertest.Object(t, asks("ingress", "istiod-gone")), cluster.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	found, err := Verify(t.Context(), c, stays)
	if err != nil || len(found) != 1 || found[0].String() != "Deployment mesh/ingress" ||
		!strings.Contains(found[0].Problem,
			"from Service mesh/istiod-gone (--discovery-address), which is not there; install again with the same file and settings") {
		t.Errorf("%v, %v", found, err)
	}
}
