package commands

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/tests/internal/kubeapi"
)

// injector is what a revision's injector and control plane have in an API server.
func injector(revision string) string {
	suffix := "-" + revision
	if revision == "default" {
		suffix = ""
	}
	hook := `
- name: PREFIXsidecar-injector.istio.io
  clientConfig: {service: {name: istiodSUFFIX, namespace: istio-system, path: /inject, port: 443}, caBundle: QUJD}
  sideEffects: None
  failurePolicy: Fail
  reinvocationPolicy: Never
  admissionReviewVersions: [v1]
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
  namespaceSelector: {matchExpressions: [NAMESPACE]}
  objectSelector: {matchExpressions: [POD]}`
	text := `
apiVersion: v1
kind: Service
metadata: {name: istiodSUFFIX, namespace: istio-system, labels: {app: istiod, istio: pilot, istio.io/rev: REVISION}}
spec: {selector: {app: istiod, istio.io/rev: REVISION}, ports: [{name: grpc-xds, port: 15010}, {name: https-webhook, port: 443, targetPort: 15017}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: istio-sidecar-injectorSUFFIX, labels: {app: sidecar-injector, istio.io/rev: REVISION, operator.istio.io/component: Pilot}}
webhooks:`
	add := func(prefix, namespace, pod string) {
		text += strings.NewReplacer("PREFIX", prefix, "NAMESPACE", namespace, "POD", pod).Replace(hook)
	}
	const unlabelled, unrevised = "{key: istio-injection, operator: DoesNotExist}", "{key: istio.io/rev, operator: DoesNotExist}"
	const notRefused, ofRevision = "{key: sidecar.istio.io/inject, operator: NotIn, values: ['false']}",
		"{key: istio.io/rev, operator: In, values: [REVISION]}"
	add("rev.namespace.", ofRevision+", "+unlabelled, notRefused)
	add("rev.object.", unrevised+", "+unlabelled, notRefused+", "+ofRevision)
	if revision == "default" {
		add("namespace.", "{key: istio-injection, operator: In, values: [enabled]}", notRefused)
		add("object.", unlabelled+", "+unrevised, "{key: sidecar.istio.io/inject, operator: In, values: ['true']}, "+unrevised)
	}
	return strings.NewReplacer("SUFFIX", suffix, "REVISION", revision).Replace(text)
}

const namespaces = `
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio.io/rev: prod}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: bank, labels: {istio-injection: enabled}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: both, labels: {istio.io/rev: prod, istio-injection: enabled}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: old, labels: {istio.io/rev: default}}}
`

func hooks(t *testing.T, s *kubeapi.Server) map[string]admissionv1.MutatingWebhookConfiguration {
	t.Helper()
	list, err := s.Client(t).AdmissionregistrationV1().MutatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]admissionv1.MutatingWebhookConfiguration{}
	for _, w := range list.Items {
		all[w.Name] = w
	}
	return all
}

func TestLifeOfATag(t *testing.T) {
	s := start(t)
	if _, said := does(t, s, 3, "tag", "set", "prod", "--revision", "canary"); !strings.Contains(said,
		"install the revision with its injector first") {
		t.Errorf("without an injector: %q", said)
	}
	if out, _ := does(t, s, 0, "tag", "list", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("an empty list is %q", out)
	}
	s.Apply(t, injector("canary")+"\n---\n"+injector("stable"))

	does(t, s, 2, "tag", "set", "prod")
	does(t, s, 0, "tag", "set", "prod", "--revision", "stable")
	hook := hooks(t, s)["istio-revision-tag-prod"]
	if len(hook.Webhooks) != 2 || hook.Labels["istio.io/tag"] != "prod" || hook.Labels["istio.io/rev"] != "stable" ||
		hook.Labels["operator.istio.io/component"] != "" {
		t.Fatalf("the tag's webhooks: %+v", hook)
	}
	if c := hook.Webhooks[0].ClientConfig; c.Service.Name != "istiod-stable" || string(c.CABundle) != "ABC" {
		t.Errorf("the tag asks %+v", c)
	}
	if _, said := does(t, s, 3, "tag", "set", "prod", "--revision", "canary"); !strings.Contains(said, `for revision "stable"; --overwrite`) {
		t.Errorf("without --overwrite: %q", said)
	}
	does(t, s, 0, "tag", "set", "prod", "--revision", "canary", "--overwrite")
	if hook = hooks(t, s)["istio-revision-tag-prod"]; hook.Webhooks[1].ClientConfig.Service.Name != "istiod-canary" {
		t.Errorf("an overwritten tag asks %+v", hook.Webhooks[1].ClientConfig)
	}
	service, err := s.Client(t).CoreV1().Services("istio-system").Get(t.Context(), "istiod-revision-tag-prod", metav1.GetOptions{})
	if err != nil || service.Spec.Selector["istio.io/rev"] != "canary" || len(service.Spec.Ports) != 2 {
		t.Errorf("the tag's Service: %+v, %v", service, err)
	}
	generation := hook.Generation
	does(t, s, 0, "tag", "set", "prod", "--revision", "canary", "--overwrite")
	if hook = hooks(t, s)["istio-revision-tag-prod"]; hook.Generation != generation {
		t.Error("the same tag again changes its webhooks")
	}
	does(t, s, 0, "tag", "set", "prod", "--revision", "canary", "--overwrite", "--webhook-name", "mine")
	if all := hooks(t, s); len(all) != 3 || all["mine"].Labels["istio.io/tag"] != "prod" {
		t.Errorf("a tag whose webhooks get another name: %d of them", len(all))
	}
	does(t, s, 3, "tag", "set", "stable", "--revision", "canary")
	does(t, s, 3, "tag", "set", "a.b", "--revision", "canary")
	if out, said, code := run(t, fairlead(t), s.Kubeconfig, "n\n", "tag", "remove", "prod"); code != 1 ||
		!strings.Contains(said, "both, shop") {
		t.Errorf("removal of a tag that is in use: %d, %q%q", code, out, said)
	}
	does(t, s, 2, "tag", "remove", "prod") // nobody answers
	if all := hooks(t, s); len(all) != 3 {
		t.Error("a removal without yes removes")
	}
	if _, said, code := run(t, fairlead(t), s.Kubeconfig, "yes\n", "tag", "remove", "prod"); code != 0 {
		t.Errorf("removal after yes: %d, %q", code, said)
	}
	if _, said := does(t, s, 1, "tag", "remove", "prod", "-y"); !strings.Contains(said, `no tag "prod"`) {
		t.Errorf("removal of what is not there: %q", said)
	}
	nothingTagged(t, s)
}

// nothingTagged asserts that no object has the label of a tag.
func nothingTagged(t *testing.T, s *kubeapi.Server) {
	t.Helper()
	client, o := s.Client(t), metav1.ListOptions{LabelSelector: "istio.io/tag"}
	a, err1 := client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(t.Context(), o)
	b, err2 := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(t.Context(), o)
	c, err3 := client.CoreV1().Services("").List(t.Context(), o)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if len(a.Items)+len(b.Items)+len(c.Items) > 0 {
		t.Errorf("left: %v %v %v", a.Items, b.Items, c.Items)
	}
}

func TestTheDefaultTagTakesThePlaceOfTheDefaultRevisionAndGivesItBack(t *testing.T) {
	s := start(t)
	s.Apply(t, injector("canary")+"\n---\n"+injector("default"))
	before := hooks(t, s)["istio-sidecar-injector"]
	if _, said := does(t, s, 2, "tag", "set", "default", "--revision", "canary"); !strings.Contains(said, "bank, both, old") {
		t.Errorf("the question does not name who is moved: %q", said)
	}
	if !reflect.DeepEqual(before, hooks(t, s)["istio-sidecar-injector"]) {
		t.Error("a question without an answer changes the injector")
	}
	if _, said := does(t, s, 0, "tag", "set", "default", "--revision", "canary", "-y"); !strings.Contains(said, "injects nothing any more") {
		t.Errorf("no warning: %q", said)
	}
	all := hooks(t, s)
	if len(all["istio-revision-tag-default"].Webhooks) != 4 {
		t.Errorf("the tag default has webhooks %v", all["istio-revision-tag-default"].Webhooks)
	}
	for _, w := range all["istio-sidecar-injector"].Webhooks {
		if w.NamespaceSelector.MatchLabels["istio.io/deactivated"] == "" {
			t.Errorf("webhook %s injects beside the tag", w.Name)
		}
	}
	v, err := s.Client(t).AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "istiod-default-validator",
		metav1.GetOptions{})
	if err != nil || v.Webhooks[0].ClientConfig.Service.Name != "istiod-canary" || *v.Webhooks[0].ClientConfig.Service.Path != "/validate" {
		t.Errorf("the validator: %+v, %v", v, err)
	}
	does(t, s, 0, "tag", "set", "default", "--revision", "canary", "--auto-inject-namespaces", "--overwrite")
	if n := len(hooks(t, s)["istio-revision-tag-default"].Webhooks); n != 5 {
		t.Errorf("with --auto-inject-namespaces %d webhooks", n)
	}
	does(t, s, 0, "tag", "remove", "default", "-y")
	if after := hooks(t, s)["istio-sidecar-injector"]; !reflect.DeepEqual(before.Webhooks, after.Webhooks) {
		t.Errorf("the injector of revision default is not as before:\n%+v\n%+v", before.Webhooks, after.Webhooks)
	}
	nothingTagged(t, s)
}

func TestTagsRevisionsContextsAndNamespacesAreCompleted(t *testing.T) {
	s := start(t)
	s.Apply(t, injector("canary")+"\n---\n"+injector("stable"))
	does(t, s, 0, "tag", "set", "prod", "--revision", "canary")
	for _, tc := range []struct{ words, want string }{
		{"tag remove --kubeconfig FILE ", "prod"},
		{"tag set x --kubeconfig FILE --revision s", "stable"},
		{"manifest migrate --kubeconfig FILE --revision c", "canary"},
		{"precheck --kubeconfig FILE --namespace sh", "shop"},
		{"tag list --kubeconfig FILE -i istio-", "istio-system"},
		{"tag list --kubeconfig FILE --context ", ""},
	} {
		words := strings.Split(strings.Replace(tc.words, "FILE", s.Kubeconfig, 1), " ")
		out, said, code := program(t, fairlead(t), "", append([]string{"__complete"}, words...)...)
		first, _, _ := strings.Cut(out, "\n")
		if code != 0 || tc.want != "" && first != tc.want || tc.want == "" && strings.HasPrefix(first, ":") {
			t.Errorf("%s is completed to %q, want %q\n%s", tc.words, out, tc.want, said)
		}
	}
}

func TestAMissingRightIsNamedAndNothingChanges(t *testing.T) {
	s := start(t)
	s.Apply(t, injector("canary"))
	user := s.User(t, "reader")
	for _, a := range [][]string{{"tag", "list"}, {"tag", "set", "prod", "--revision", "canary"}, {"tag", "remove", "prod", "-y"}} {
		_, said, code := run(t, fairlead(t), user, "", a...)
		if code != 1 || !strings.Contains(said, "mutatingwebhookconfigurations") || !strings.Contains(said, "ask for this right") {
			t.Errorf("%v without rights: %d, %q", a, code, said)
		}
	}
	if all := hooks(t, s); len(all) != 1 {
		t.Errorf("there are %d webhook configurations", len(all))
	}
}

// TestTagsAreIstioctls compares with istioctl, of ISTIO_BIN, on the injectors of Istio's own charts.
func TestTagsAreIstioctls(t *testing.T) {
	istioctl, _ := istio(t)
	s := start(t)
	for _, revision := range []string{"default", "canary"} {
		out, said, code := run(t, istioctl, s.Kubeconfig, "", "manifest", "generate", "-r", revision)
		if code != 0 {
			t.Fatal(said)
		}
		for _, o := range decode(t, out) {
			if slices.Contains([]string{"MutatingWebhookConfiguration", "Service"}, o.GetKind()) {
				if err := kubeapi.Apply(t.Context(), s.Config, o); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, a := range [][]string{
		{"prod", "--revision", "canary"}, {"prod", "--revision", "default"}, {"default", "--revision", "canary"},
		{"default", "--revision", "canary", "--auto-inject-namespaces"}, {"prod", "--revision", "canary", "--webhook-name", "mine"},
		{"prod", "--revision", "none"}, {"prod"}, {},
	} {
		t.Run("generate "+strings.Join(a, " "), func(t *testing.T) {
			theirs, said, code := run(t, istioctl, s.Kubeconfig, "", append([]string{"tag", "generate"}, a...)...)
			ours, also, our := run(t, fairlead(t), s.Kubeconfig, "", append([]string{"tag", "generate"}, a...)...)
			if (code == 0) != (our == 0) {
				t.Fatalf("istioctl %d: %s\nfairlead %d: %s", code, said, our, also)
			}
			if want, got := accepted(t, s, theirs), accepted(t, s, ours); code == 0 && (len(want) == 0 || !reflect.DeepEqual(want, got)) {
				t.Errorf("istioctl:\n%v\nfairlead:\n%v", want, got)
			}
		})
	}
	same := func(t *testing.T) {
		t.Helper()
		theirs, _, _ := run(t, istioctl, s.Kubeconfig, "", "tag", "list", "-o", "json")
		ours, _ := does(t, s, 0, "tag", "list", "-o", "json")
		var want, got any
		if err := errors.Join(json.Unmarshal([]byte(theirs), &want), json.Unmarshal([]byte(ours), &got)); err != nil ||
			!reflect.DeepEqual(want, got) {
			t.Errorf("istioctl lists %s\nfairlead %s\n%v", theirs, ours, err)
		}
	}
	// istioctl prints a tag of a revision's name, which it does not set.
	does(t, s, 3, "tag", "generate", "canary", "--revision", "default")
	same(t)
	does(t, s, 0, "tag", "set", "prod", "--revision", "canary")
	same(t)
	if _, said, code := run(t, istioctl, s.Kubeconfig, "", "tag", "set", "default", "--revision", "canary"); code != 0 {
		t.Fatal(said)
	}
	same(t)
	does(t, s, 0, "tag", "set", "empty", "--revision", "default")
	same(t)
	does(t, s, 0, "tag", "remove", "default", "-y")
	if _, said, code := run(t, istioctl, s.Kubeconfig, "", "tag", "remove", "prod", "-y"); code != 0 {
		t.Fatal(said)
	}
	same(t)
}

// accepted is what an API server makes of objects, in a dry run: with its defaults, and without what differs from one
// request to the next.
func accepted(t *testing.T, s *kubeapi.Server, text string) map[string]any {
	t.Helper()
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	for _, o := range decode(t, text) {
		resource := schema.GroupVersionResource{Version: "v1", Resource: strings.ToLower(o.GetKind()) + "s", Group: o.GroupVersionKind().Group}
		var in dynamic.ResourceInterface = client.Resource(resource)
		if ns := o.GetNamespace(); ns != "" {
			in = client.Resource(resource).Namespace(ns)
		}
		o.SetAnnotations(nil)
		got, err := in.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Fatalf("%s: %v", o.GetName(), err)
		}
		spec, _, _ := unstructured.NestedMap(got.Object, "spec")
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
		// fairlead copies the selector of the Service istiod. istioctl's for the revision "default" is another one that
		// selects the same Pods.
		if selector, ok := spec["selector"].(map[string]any); ok && selector["istio"] == "pilot" {
			spec["selector"] = map[string]any{"app": selector["app"], "istio.io/rev": "default"}
		}
		all[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = map[string]any{"labels": got.GetLabels(), "webhooks": got.Object["webhooks"],
			"spec": spec}
	}
	return all
}
