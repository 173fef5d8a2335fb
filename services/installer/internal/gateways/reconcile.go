package gateways

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/gateways/objects"
)

// Reasons of events.
const (
	reasonParameters     = "InvalidParameters"
	reasonForeign        = "ObjectOfAnotherOwner"
	reasonFailed         = "DeploymentFailed"
	reasonInfrastructure = "InfrastructureNotForPods"
)

// A refusal is what the Gateway or a ConfigMap has to change. What runs stays as it is.
type refusal struct{ error }

// parameters are the contents of a ConfigMap at a version.
type parameters struct {
	version string
	data    map[string]string
}

// reconcile compares a Gateway with its objects, and writes what differs. It returns after which time it has to be
// called again although nothing changes. An error says that it has to be tried again.
func (c *controller) reconcile(ctx context.Context, key types.NamespacedName) (again time.Duration, err error) {
	stored, exists, err := c.gateways.indexer().GetByKey(key.String())
	gw, ok := stored.(*gatewayv1.Gateway)
	if err != nil || !exists || !ok {
		c.forget(key)
		return 0, err
	}
	controller, ours := c.ours(gw)
	if !ours || gw.DeletionTimestamp != nil {
		c.forget(key)
		return 0, nil
	}
	k := c.about(key)
	wanted, err := c.wanted(ctx, gw, controller)
	var refused refusal
	switch {
	case errors.As(err, &refused):
		c.tell(ctx, k, gw, corev1.EventTypeWarning, reasonParameters, err.Error()+". Nothing is changed until then")
		c.note(key, resultRefused, err.Error())
		return 0, nil
	case err != nil:
		return 0, c.fail(ctx, key, k, gw, err)
	}
	foreign, again, err := c.make(ctx, k, gw, wanted)
	switch {
	case err != nil:
		return 0, c.fail(ctx, key, k, gw, err)
	case len(foreign) > 0:
		text := strings.Join(foreign, "; ")
		c.tell(ctx, k, gw, corev1.EventTypeWarning, reasonForeign, text)
		c.note(key, resultForeign, text)
		return inTheWay, nil
	}
	c.note(key, resultOK, "")
	if left := gatewaydeploy.ReservedInfrastructure(gw); len(left) > 0 && len(wanted) > 0 {
		c.tell(ctx, k, gw, corev1.EventTypeNormal, reasonInfrastructure, fmt.Sprintf(
			"spec.infrastructure: %s are given to no Pod or to no service account, where they would say what a Pod may do, or "+
				"how the mesh treats it",
			strings.Join(left, ", "),
		))
	} else {
		k.told = ""
	}
	return again, nil
}

// fail tells of an error and returns it.
func (c *controller) fail(ctx context.Context, key types.NamespacedName, k *known, gw *gatewayv1.Gateway, err error) error {
	if ctx.Err() == nil {
		c.Log.Warn("what a Gateway needs cannot be made, trying again", "gateway", key.String(), "error", err)
		c.tell(ctx, k, gw, corev1.EventTypeWarning, reasonFailed, err.Error())
		c.note(key, resultFailed, err.Error())
	}
	return err
}

// ours returns the controllerName of a Gateway's class, and whether this process and revision deploy its Gateways.
func (c *controller) ours(gw *gatewayv1.Gateway) (gatewayv1.GatewayController, bool) {
	stored, _, _ := c.classes.indexer().GetByKey(string(gw.Spec.GatewayClassName))
	class, ok := stored.(*gatewayv1.GatewayClass)
	if !ok || !gatewaydeploy.Managed(class.Spec.ControllerName) {
		return "", false
	}
	return class.Spec.ControllerName, c.revisionOf(gw) == c.options.revisionName()
}

// revisionOf is the revision that deploys a Gateway. The Gateways of one that is not installed have nobody.
func (c *controller) revisionOf(gw *gatewayv1.Gateway) string {
	tags := map[string]string{}
	for _, o := range c.tags.GetStore().List() {
		if m, ok := o.(metav1.Object); ok {
			tags[m.GetLabels()[contract.TagLabel]] = m.GetLabels()[contract.RevisionLabel]
		}
	}
	return contract.RevisionOf(gw.Labels, c.labelsOf(gw.Namespace), tags)
}

// labelsOf are those of a namespace.
func (c *controller) labelsOf(namespace string) map[string]string {
	stored, _, _ := c.namespaces.GetStore().GetByKey(namespace)
	if m, ok := stored.(metav1.Object); ok {
		return m.GetLabels()
	}
	return nil
}

// wanted are the objects that a Gateway is to have; none if it names a Service that is there.
func (c *controller) wanted(
	ctx context.Context,
	gw *gatewayv1.Gateway,
	controller gatewayv1.GatewayController,
) ([]objects.Object, error) {
	if !gatewaydeploy.Wanted(gw) {
		return nil, nil
	}
	if err := gatewaydeploy.CheckGateway(gw); err != nil {
		return nil, refusal{err}
	}
	overlays, err := c.overlays(ctx, gw)
	if err != nil {
		return nil, err
	}
	var sets []*gatewayv1.ListenerSet
	found, _ := c.sets.indexer().ByIndex(byParent, gw.Namespace+"/"+gw.Name)
	for _, o := range found {
		if set, ok := o.(*gatewayv1.ListenerSet); ok && gatewaydeploy.Allows(gw, set.Namespace, c.labelsOf(set.Namespace)) {
			sets = append(sets, set)
		}
	}
	all, err := c.current().Build(
		objects.Input{Gateway: gw, Controller: controller, Ports: gatewaydeploy.Ports(gw, sets), Overlays: overlays},
	)
	if err != nil {
		// The inputs alone decide, so that another attempt would end like this one.
		return nil, refusal{err}
	}
	return all, nil
}

// overlays are those of the Gateway's class and its own.
func (c *controller) overlays(ctx context.Context, gw *gatewayv1.Gateway) (out []map[string]string, err error) {
	for _, name := range gatewaydeploy.ConfigMaps(gw, c.defaults(string(gw.Spec.GatewayClassName))) {
		data, found, err := c.configMap(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := gatewaydeploy.CheckConfigMap(name, data, found); err != nil {
			return nil, refusal{err}
		}
		out = append(out, data)
	}
	return out, nil
}

// defaults is the oldest ConfigMap with overlays for all Gateways of a class; the zero name if there is none.
func (c *controller) defaults(class string) types.NamespacedName {
	found, _ := c.configMaps.GetIndexer().ByIndex("namespace", c.options.RootNamespace)
	var all []metav1.Object
	for _, o := range found {
		if m, ok := o.(metav1.Object); ok && m.GetLabels()[gatewaydeploy.DefaultsLabel] == class {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return types.NamespacedName{}
	}
	return keyOf(slices.MinFunc(all, func(a, b metav1.Object) int {
		if by := a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time); by != 0 {
			return by
		}
		return strings.Compare(a.GetName(), b.GetName())
	}))
}

// configMap reads a ConfigMap of which the version is known, once for each version.
func (c *controller) configMap(ctx context.Context, name types.NamespacedName) (data map[string]string, found bool, err error) {
	stored, exists, err := c.configMaps.GetIndexer().GetByKey(name.String())
	m, ok := stored.(metav1.Object)
	c.mu.Lock()
	kept, has := c.parameters[name]
	c.mu.Unlock()
	switch {
	case err != nil:
		return nil, false, err
	case !exists || !ok:
		c.mu.Lock()
		delete(c.parameters, name)
		c.mu.Unlock()
		return nil, false, nil
	case has && kept.version == m.GetResourceVersion():
		return kept.data, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	read, err := c.client.CoreV1().ConfigMaps(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("ConfigMap %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parameters[name] = parameters{read.ResourceVersion, read.Data}
	return read.Data, true, nil
}

// tell makes an event of a Gateway, unless it was the last that was said of it.
func (c *controller) tell(ctx context.Context, k *known, gw *gatewayv1.Gateway, kind, reason, text string) {
	if k.told == reason+text {
		return
	}
	k.told = reason + text
	if len(text) > maxEvent {
		text = strings.ToValidUTF8(text[:maxEvent], "") + " …"
	}
	now := metav1.NewTime(c.clock.Now())
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.client.CoreV1().Events(gw.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: gw.Namespace, GenerateName: gatewaydeploy.LabelValue(gw.Name) + "."},
		InvolvedObject: corev1.ObjectReference{
			APIVersion:      gatewayv1.GroupVersion.String(),
			Kind:            "Gateway",
			Namespace:       gw.Namespace,
			Name:            gw.Name,
			UID:             gw.UID,
			ResourceVersion: gw.ResourceVersion,
		},
		Type: kind, Reason: reason, Message: text, Source: corev1.EventSource{Component: manager}, FirstTimestamp: now,
		LastTimestamp: now, Count: 1,
		ReportingController: manager,
	}, metav1.CreateOptions{})
	if err != nil && ctx.Err() == nil {
		c.Log.Warn("an event cannot be made", "gateway", gw.Namespace+"/"+gw.Name, "reason", reason, "text", text, "error", err)
	}
}

// maxEvent bounds the text of an event, which Kubernetes bounds at 1,024 bytes.
const maxEvent = 1000
