package tag

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/kube"
)

// Manager is the field manager of tags.
const Manager = "fairlead-tag"

// Client reads and writes tags in an API server.
type Client struct {
	API kube.API
	// Namespace of the control plane.
	Namespace string
}

// state is what tags are made from, and depend on.
type state struct {
	webhooks   []admissionv1.MutatingWebhookConfiguration
	namespaces []corev1.Namespace
}

func (c Client) read(ctx context.Context) (state, error) {
	var s state
	hooks, err := c.API.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx,
		metav1.ListOptions{LabelSelector: contract.RevisionLabel})
	if err != nil {
		return s, err
	}
	namespaces, err := c.API.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	return state{hooks.Items, namespaces.Items}, nil
}

// List lists the tags of the API server.
func (c Client) List(ctx context.Context) ([]Tag, error) {
	s, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	return List(s.webhooks, s.namespaces), nil
}

// ErrRefused is of a tag that cannot be, and of one that would replace another.
var ErrRefused = errors.New("refused")

func refuse(format string, a ...any) error {
	return &refusal{fmt.Sprintf(format, a...)}
}

type refusal struct{ text string }

func (r *refusal) Error() string   { return r.text }
func (r *refusal) Is(e error) bool { return e == ErrRefused }

// Plan is what Set does.
type Plan struct {
	Objects
	// Old is the tag's former revision; empty if it is new.
	Old string
	// silence is the injector of the revision "default", without what the tag "default" does in its place.
	silence *admissionv1.MutatingWebhookConfiguration
	// Moves are the namespaces that another revision injects from now on without --overwrite: the tag "default" takes
	// the place of the revision "default".
	Moves []string
	// Warnings for the user.
	Warnings []string
}

// Make plans a tag, from what the API server has. Without overwrite it refuses a tag that is there.
func (c Client) Make(ctx context.Context, o Options, overwrite bool) (Plan, error) {
	var p Plan
	if err := CheckName(o.Tag); err != nil {
		return p, refuse("%v", err)
	}
	s, err := c.read(ctx)
	if err != nil {
		return p, err
	}
	injector, err := s.injector(o.Revision)
	if err != nil {
		return p, err
	}
	if o.Tag != Default && slices.ContainsFunc(s.webhooks, func(w admissionv1.MutatingWebhookConfiguration) bool {
		return w.Labels[labelTag] == "" && w.Labels[contract.RevisionLabel] == o.Tag
	}) {
		return p, refuse("%q is a revision of the control plane, and cannot be a tag too; choose another name", o.Tag)
	}
	for _, old := range s.tagged(o.Tag) {
		if p.Old = old.Labels[contract.RevisionLabel]; !overwrite {
			return p, refuse("tag %q is there, for revision %q; --overwrite replaces it", o.Tag, p.Old)
		}
	}
	istiod, err := c.service(ctx, o.Revision)
	if err != nil {
		return p, err
	}
	if istiod == nil {
		p.Warnings = append(p.Warnings,
			fmt.Sprintf("revision %s has no Service istiod in namespace %s: the tag gets none, so that proxies outside of injection cannot dial "+
				"%s; name the namespace with -i",
				o.Revision, c.Namespace, servicePrefix+o.Tag))
	}
	if p.Objects, err = Make(o, injector, istiod); err != nil {
		return p, err
	}
	if o.Tag == Default {
		p.besides(s, o.Revision)
	}
	return p, nil
}

// besides plans what happens to the injector of the revision "default" itself: its webhooks select what the tag does.
func (p *Plan) besides(s state, revision string) {
	i := slices.IndexFunc(s.webhooks, func(w admissionv1.MutatingWebhookConfiguration) bool {
		return w.Labels[labelTag] == "" && w.Labels[contract.RevisionLabel] == Default
	})
	if i < 0 {
		return
	}
	w := s.webhooks[i].DeepCopy()
	if Deactivate(w) {
		p.silence = w
		if revision != Default {
			p.Moves = Using(s.namespaces, Default)
		}
		p.Warnings = append(p.Warnings,
			fmt.Sprintf("MutatingWebhookConfiguration %s of revision default injects nothing any more: the tag does, by revision %s; `fairlead "+
				"tag remove default` undoes it", w.Name, revision))
	}
}

// injector finds the webhooks of a revision.
func (s state) injector(revision string) (*admissionv1.MutatingWebhookConfiguration, error) {
	var found []*admissionv1.MutatingWebhookConfiguration
	var known []string
	for i := range s.webhooks {
		w := &s.webhooks[i]
		if w.Labels[labelTag] != "" {
			continue
		}
		known = append(known, w.Labels[contract.RevisionLabel])
		if w.Labels[contract.RevisionLabel] == revision {
			found = append(found, w)
		}
	}
	slices.Sort(known)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, refuse("revision %q has two injectors, MutatingWebhookConfigurations %s and %s; remove the one that nothing serves", revision,
			found[0].Name, found[1].Name)
	case len(known) == 0:
		return nil, refuse("revision %q has no injector: there is no MutatingWebhookConfiguration with label %s; install the revision with its "+
			"injector first", revision, contract.RevisionLabel)
	}
	return nil, refuse("revision %q has no injector: no MutatingWebhookConfiguration with label %s=%s; there are revisions %s", revision,
		contract.RevisionLabel, revision, strings.Join(slices.Compact(known), ", "))
}

func (s state) tagged(name string) []admissionv1.MutatingWebhookConfiguration {
	return slices.DeleteFunc(slices.Clone(s.webhooks),
		func(w admissionv1.MutatingWebhookConfiguration) bool { return w.Labels[labelTag] != name })
}

// service finds the Service of a revision's control plane; nil if there is none.
func (c Client) service(ctx context.Context, revision string) (*corev1.Service, error) {
	name := "istiod"
	if revision != Default {
		name += "-" + revision
	}
	s, err := c.API.CoreV1().Services(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	return s, err
}

// Set writes a tag. Interrupted, it is completed by the next Set of the same tag with overwrite: first the tag injects,
// and only then the injector of the revision "default" falls silent.
func (c Client) Set(ctx context.Context, p Plan) error {
	hooks := c.API.AdmissionregistrationV1()
	if err := c.apply(p.Webhook, func(data []byte, o metav1.PatchOptions) error {
		_, err := hooks.MutatingWebhookConfigurations().Patch(ctx, p.Webhook.Name, types.ApplyPatchType, data, o)
		return err
	}); err != nil {
		return err
	}
	// A tag that had another webhook's name has it no more: two would inject the same Pods.
	s, err := c.read(ctx)
	if err != nil {
		return err
	}
	for _, old := range s.tagged(p.Webhook.Labels[labelTag]) {
		if old.Name != p.Webhook.Name {
			if err := hooks.MutatingWebhookConfigurations().Delete(ctx, old.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	if v := p.Validator; v != nil {
		if err := c.apply(v, func(data []byte, o metav1.PatchOptions) error {
			_, err := hooks.ValidatingWebhookConfigurations().Patch(ctx, v.Name, types.ApplyPatchType, data, o)
			return err
		}); err != nil {
			return err
		}
	}
	if s := p.Service; s != nil {
		if err := c.apply(s, func(data []byte, o metav1.PatchOptions) error {
			_, err := c.API.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.ApplyPatchType, data, o)
			return err
		}); err != nil {
			return err
		}
	}
	if p.silence != nil {
		_, err := hooks.MutatingWebhookConfigurations().Update(ctx, p.silence, metav1.UpdateOptions{FieldManager: Manager})
		return err
	}
	return nil
}

// apply applies an object on the server's side. A tag is the command's own: another manager of its fields, such as
// istioctl, gives way.
func (c Client) apply(object any, patch func([]byte, metav1.PatchOptions) error) error {
	data, err := json.Marshal(object)
	if err != nil {
		return err
	}
	force := true
	return patch(data, metav1.PatchOptions{FieldManager: Manager, Force: &force})
}

// Using lists the namespaces that lose injection with a tag, which must be there.
func (c Client) Using(ctx context.Context, name string) ([]string, error) {
	s, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	if len(s.tagged(name)) == 0 {
		names := []string{}
		for _, t := range List(s.webhooks, nil) {
			if t.Tag != "" {
				names = append(names, t.Tag)
			}
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("there is no tag %q, and no other", name)
		}
		return nil, fmt.Errorf("there is no tag %q; there are %s", name, strings.Join(names, ", "))
	}
	return Using(s.namespaces, name), nil
}

// Remove removes a tag; of the tag "default" the validator, too, and then the injector of the revision "default", if
// there is one, injects again.
func (c Client) Remove(ctx context.Context, name string) (warnings []string, err error) {
	s, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	hooks := c.API.AdmissionregistrationV1()
	tag := labelTag + "=" + name
	if name == Default {
		if warnings, err = c.wake(ctx, s); err != nil {
			return warnings, err
		}
		list, err := hooks.ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{LabelSelector: tag})
		if err != nil {
			return warnings, err
		}
		for _, v := range list.Items {
			if err := hooks.ValidatingWebhookConfigurations().Delete(ctx, v.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return warnings, err
			}
		}
	}
	services, err := c.API.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: tag})
	if err != nil {
		return warnings, err
	}
	for _, v := range services.Items {
		if err := c.API.CoreV1().Services(v.Namespace).Delete(ctx, v.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return warnings, err
		}
	}
	// The webhooks are last: as long as they are there, the tag is, and a removal that failed can be repeated.
	for _, w := range s.tagged(name) {
		if err := hooks.MutatingWebhookConfigurations().Delete(ctx, w.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return warnings, err
		}
	}
	return warnings, nil
}

// wake lets the injector of the revision "default" inject again.
func (c Client) wake(ctx context.Context, s state) (warnings []string, err error) {
	for i := range s.webhooks {
		w := &s.webhooks[i]
		if w.Labels[labelTag] != "" || w.Labels[contract.RevisionLabel] != Default {
			continue
		}
		changed, unknown := Restore(w)
		for _, name := range unknown {
			warnings = append(warnings, fmt.Sprintf(
				"webhook %s of %s stays deactivated, because its selectors are not known; install revision default again", name, w.Name))
		}
		if changed {
			if _, err := c.API.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(ctx, w,
				metav1.UpdateOptions{FieldManager: Manager}); err != nil {
				return warnings, err
			}
			warnings = append(warnings, fmt.Sprintf("MutatingWebhookConfiguration %s of revision default injects again", w.Name))
		}
	}
	return warnings, nil
}
