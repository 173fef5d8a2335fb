package tag

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/kube"
)

// Revisions lists the revisions of an API server; none if they cannot be listed.
func Revisions(ctx context.Context, api kube.API) []string {
	return names(ctx, api, func(t Tag) string { return t.Revision })
}

// Names lists the tags of an API server; none if they cannot be listed.
func Names(ctx context.Context, api kube.API) []string {
	return names(ctx, api, func(t Tag) string { return t.Tag })
}

func names(ctx context.Context, api kube.API, of func(Tag) string) (list []string) {
	hooks, err := api.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx,
		metav1.ListOptions{LabelSelector: contract.RevisionLabel})
	if err != nil {
		return nil
	}
	for _, t := range List(hooks.Items, nil) {
		if name := of(t); name != "" {
			list = append(list, name)
		}
	}
	return list
}
