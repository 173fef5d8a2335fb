package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/pkg/nearest"

	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/objectfile"
	"fairlead.dev/services/installer/internal/table"
)

// checkInjectFlags are the flags of `fairlead check-inject`.
type checkInjectFlags struct {
	clusterFlags
	namespace, labels string
	out               *format
}

// injectorCheck says whether a configuration of webhooks is asked about a Pod, and why.
type injectorCheck struct {
	Webhook  string `json:"webhook"`
	Revision string `json:"revision"`
	Injected bool   `json:"injected"`
	Reason   string `json:"reason"`
}

func newCheckInject() *cobra.Command {
	f := checkInjectFlags{out: newFormat("json", "yaml")}
	cmd := &cobra.Command{
		Use:   "check-inject [POD[.NAMESPACE] | KIND/NAME]",
		Short: "Say which injector the API server asks about a Pod, and why",
		Long: `Say for each configuration of an injector's webhooks in a cluster whether the API server asks it about a Pod, and by which labels: of a Pod that is
there, of the Pods of a Deployment, StatefulSet or DaemonSet, or with -l of Pods with some labels in the namespace of -n. What the injector then decides by
annotations and its policy, ` + "`fairlead describe pod`" + ` and ` + "`fairlead analyze --kube`" + ` say.

Exit code 0 whether it is asked or not; 1 if there is no such namespace, Pod or other object.`,
		Example: `  fairlead check-inject reviews-v1-7d9f-abcde.shop
  fairlead check-inject -n shop deployment/reviews-v1
  fairlead check-inject -n shop -l app=reviews,istio.io/rev=canary`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return checkInject(cmd.Context(), f, strings.Join(a, ""), cmd.OutOrStdout())
		},
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace (default: that of the Pod's name, or \"default\")")
	cmd.Flags().StringVarP(&f.labels, "labels", "l", "", "labels of Pods, KEY=VALUE, divided by commas, in place of a name")
	outputFlag(cmd, f.out)
	completeKubeNamespaces(cmd, &f.clusterFlags, "namespace")
	return cmd
}

var errNoPod = errors.New("name a Pod, or KIND/NAME, or give labels with -l")

func checkInject(ctx context.Context, f checkInjectFlags, name string, out io.Writer) error {
	if (name == "") == (f.labels == "") {
		return usage(errNoPod)
	}
	api, err := f.client()
	if err != nil {
		return err
	}
	namespace, pod, err := f.labelsOf(ctx, api, name)
	if err != nil {
		return err
	}
	ns, err := api.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return noSuch(ctx, api, "namespace", "", namespace)
	}
	if err != nil {
		return kube.Explain(err)
	}
	hooks, err := api.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{Limit: kube.Page})
	if err != nil {
		return kube.Explain(err)
	}
	checks := []injectorCheck{}
	for i := range hooks.Items {
		if h := &hooks.Items[i]; injects(h) {
			checks = append(checks, check(h, ns, pod))
		}
	}
	if f.out.value != "" {
		return printTree(out, f.out.value, checks)
	}
	if len(checks) == 0 {
		_, err := fmt.Fprintln(out, "the cluster has no injector: no Pod gets a sidecar; `fairlead install` installs one")
		return err
	}
	tab := &table.Table{Header: []string{"WEBHOOK", "REVISION", "INJECTED", "REASON"}}
	for _, c := range checks {
		tab.Add(c.Webhook, c.Revision, map[bool]string{true: "yes", false: "no"}[c.Injected], c.Reason)
	}
	return tab.Write(out)
}

// labelsOf returns the namespace and the labels of the Pods that a name or -l means.
func (f checkInjectFlags) labelsOf(ctx context.Context, api kube.API, name string) (namespace string, pod labels.Set, err error) {
	namespace = f.namespace
	if f.labels != "" {
		pod, err = labels.ConvertSelectorToLabelsMap(f.labels)
		if err != nil {
			err = usage(fmt.Errorf("-l %s: %w", f.labels, err))
		}
		return cmp.Or(namespace, objectfile.DefaultNamespace), pod, err
	}
	kind, short, ofKind := strings.Cut(name, "/")
	if !ofKind {
		kind, short = "pod", name
	}
	if i := strings.LastIndexByte(short, '.'); namespace == "" && i > 0 {
		short, namespace = short[:i], short[i+1:]
	}
	namespace = cmp.Or(namespace, objectfile.DefaultNamespace)
	var template corev1.PodTemplateSpec
	switch strings.ToLower(kind) {
	case "pod", "po":
		kind = "Pod"
		found, e := api.CoreV1().Pods(namespace).Get(ctx, short, metav1.GetOptions{})
		template.Labels, err = found.GetLabels(), e
	case "deployment", "deploy":
		kind = "Deployment"
		found, e := api.AppsV1().Deployments(namespace).Get(ctx, short, metav1.GetOptions{})
		template, err = found.Spec.Template, e
	case "statefulset", "sts":
		kind = "StatefulSet"
		found, e := api.AppsV1().StatefulSets(namespace).Get(ctx, short, metav1.GetOptions{})
		template, err = found.Spec.Template, e
	case "daemonset", "ds":
		kind = "DaemonSet"
		found, e := api.AppsV1().DaemonSets(namespace).Get(ctx, short, metav1.GetOptions{})
		template, err = found.Spec.Template, e
	default:
		return "", nil, usage(fmt.Errorf("%q: the kind is none of pod, deployment, statefulset, daemonset", name))
	}
	if apierrors.IsNotFound(err) {
		return "", nil, noSuch(ctx, api, kind, namespace, short)
	}
	return namespace, template.Labels, kube.Explain(err)
}

// noSuch is the error about a namespace, a Pod or another object that is not there, with the nearest name that is.
func noSuch(ctx context.Context, api kube.API, kind, namespace, name string) error {
	known := []string{}
	namespaces, err := api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: kube.Page})
	if err == nil {
		for _, ns := range namespaces.Items {
			known = append(known, ns.Name)
		}
	}
	if kind == "namespace" || len(known) > 0 && !slices.Contains(known, namespace) {
		if namespace == "" {
			namespace = name
		}
		return fmt.Errorf("there is no namespace %s%s", namespace, nearest.Hint(namespace, known))
	}
	known = known[:0]
	if kind == "Pod" {
		if pods, err := api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: kube.Page}); err == nil {
			for i := range pods.Items {
				known = append(known, pods.Items[i].Name)
			}
		}
	}
	return fmt.Errorf("there is no %s %s in namespace %s%s", kind, name, namespace, nearest.Hint(name, known))
}

// injects reports whether a configuration is of an injector of sidecars.
func injects(h *admissionv1.MutatingWebhookConfiguration) bool {
	return slices.ContainsFunc(h.Webhooks, func(w admissionv1.MutatingWebhook) bool {
		return strings.HasSuffix(w.Name, "sidecar-injector.istio.io")
	})
}

// check applies the selectors of a configuration's webhooks.
func check(h *admissionv1.MutatingWebhookConfiguration, ns *corev1.Namespace, pod labels.Set) injectorCheck {
	c := injectorCheck{Webhook: h.Name, Revision: h.Labels[revisionLabel]}
	for _, w := range h.Webhooks {
		of, err := metav1.LabelSelectorAsSelector(w.NamespaceSelector)
		object, wrong := metav1.LabelSelectorAsSelector(w.ObjectSelector)
		if w.NamespaceSelector == nil {
			of = labels.Everything()
		}
		if w.ObjectSelector == nil {
			object = labels.Everything()
		}
		if err == nil && wrong == nil && of.Matches(labels.Set(ns.Labels)) && object.Matches(pod) {
			c.Injected, c.Reason = true, "webhook "+w.Name+" selects "+by(ns, pod)
			return c
		}
	}
	c.Reason = "no webhook of it selects " + by(ns, pod)
	return c
}

// by names the labels that decide about injection.
func by(ns *corev1.Namespace, pod labels.Set) string {
	var said []string
	for _, name := range []string{injectionLabel, revisionLabel} {
		if value, ok := ns.Labels[name]; ok {
			said = append(said, fmt.Sprintf("the namespace's %s=%s", name, value))
		}
	}
	for _, name := range []string{injectLabel, revisionLabel} {
		if value, ok := pod[name]; ok {
			said = append(said, fmt.Sprintf("the Pod's %s=%s", name, value))
		}
	}
	if len(said) == 0 {
		return fmt.Sprintf("a namespace without %s and %s, and a Pod without %s", injectionLabel, revisionLabel, injectLabel)
	}
	return strings.Join(said, " and ")
}
