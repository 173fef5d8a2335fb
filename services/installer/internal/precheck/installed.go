package precheck

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/manifest"
)

const (
	labelTag = "istio.io/tag"
)

// hook is a webhook of either kind of configuration.
type hook struct {
	origin, name string
	labels       map[string]string
	mutating     bool
	server       admissionv1.WebhookClientConfig
	fails        bool
}

// webhooks looks for webhooks that nothing serves, and for those that do the work of the installation's.
func (c *checker) webhooks(ctx context.Context) error {
	hooks, err := c.hooks(ctx)
	if apierrors.IsForbidden(err) {
		c.unread("webhook configurations", err)
		return nil
	} else if err != nil {
		return err
	}
	var injectors []string
	down := map[string]bool{}
	for _, h := range hooks {
		if s := h.server.Service; s != nil && h.fails && !down[h.origin] {
			_, err := c.API.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				down[h.origin] = true
				c.say(Error, "WebhookDown", h.origin, "delete it if its server is gone for good, else start that",
					"webhook %s asks Service %s/%s, which does not exist, and the API server refuses what it asks about", h.name, s.Namespace, s.Name)
			}
		}
		revision := h.labels[contract.RevisionLabel]
		if h.mutating && revision == c.Revision && h.labels[labelTag] == "" && !slices.Contains(injectors, h.origin) {
			injectors = append(injectors, h.origin)
			if s := h.server.Service; s != nil && s.Namespace != c.Namespace {
				c.say(Error, "RevisionElsewhere", h.origin, "install another revision with --revision, or into that namespace with -i",
					"revision %s injects from namespace %s", revision, s.Namespace)
			}
		}
	}
	if len(injectors) > 1 {
		c.say(Error, "TwoInjectors", injectors[1], "delete the one that nothing serves", "%s injects for revision %s, too", injectors[0],
			c.Revision)
	}
	return nil
}

func (c *checker) hooks(ctx context.Context) ([]hook, error) {
	var hooks []hook
	mutating, err := c.API.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, all)
	if err != nil {
		return nil, err
	}
	for _, m := range mutating.Items {
		for _, w := range m.Webhooks {
			hooks = append(hooks, hook{"MutatingWebhookConfiguration " + m.Name, w.Name, m.Labels, true, w.ClientConfig, fails(w.FailurePolicy)})
		}
	}
	validating, err := c.API.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, all)
	if err != nil {
		return nil, err
	}
	for _, v := range validating.Items {
		for _, w := range v.Webhooks {
			hooks = append(hooks, hook{"ValidatingWebhookConfiguration " + v.Name, w.Name, v.Labels, false, w.ClientConfig, fails(w.FailurePolicy)})
		}
	}
	return hooks, nil
}

func fails(p *admissionv1.FailurePolicyType) bool { return p == nil || *p == admissionv1.Fail }

// roots says whether a control plane of Istio keeps its roots where the ca would keep others.
func (c *checker) roots(origin string, d *appsv1.Deployment) error {
	if c.RootConfigMap == "" || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
		return nil
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
	if err != nil {
		return err
	}
	if apply.RootConfigMapOf(&unstructured.Unstructured{Object: object}) == c.RootConfigMap {
		c.say(Error, "RootsOfIstio", origin, "to run beside it, --set values.global.trustBundleName="+apply.BesideRoots+
			"; to take its place, remove it first",
			"it keeps its roots in ConfigMap %s of every namespace, and the ca would write its own over them", c.RootConfigMap)
	}
	return nil
}

// controlPlanes looks for control planes that are there.
func (c *checker) controlPlanes(ctx context.Context) error {
	list, err := c.API.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "app=istiod"})
	if apierrors.IsForbidden(err) {
		c.unread("Deployments", err)
		return nil
	} else if err != nil {
		return err
	}
	for _, d := range list.Items {
		revision := d.Labels[contract.RevisionLabel]
		if revision == "" {
			revision = "default"
		}
		origin := fmt.Sprintf("Deployment %s/%s", d.Namespace, d.Name)
		if err := c.roots(origin, &d); err != nil {
			return err
		}
		switch {
		case revision != c.Revision && d.Namespace == c.Namespace:
			c.say(Info, "RevisionBeside", origin, "",
				"a control plane of revision %s runs beside; namespaces stay with it until their labels change", revision)
		case revision != c.Revision:
			c.say(Info, "ControlPlaneElsewhere", origin, "", "a control plane of revision %s runs in another namespace", revision)
		case d.Namespace != c.Namespace:
			c.say(Error, "RevisionElsewhere", origin, "install another revision with --revision, or into that namespace with -i",
				"a control plane of revision %s runs in namespace %s", revision, d.Namespace)
		case slices.ContainsFunc(c.Objects, func(o *manifest.Object) bool { return o.Kind() == "Deployment" && o.Name() == d.Name }):
			c.say(Warning, "ReplacesControlPlane", origin,
				"`fairlead manifest migrate` makes an IstioOperator of it; to keep it meanwhile, install another revision with --revision",
				"it runs, and the installation writes it anew")
		default:
			c.say(Warning, "ControlPlaneBeside", origin, "install another revision with --revision, and move namespaces one by one",
				"it serves revision %s, which the installation would serve, too", revision)
		}
	}
	return nil
}
