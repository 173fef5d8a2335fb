package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	registrationv1 "k8s.io/api/admissionregistration/v1"
)

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch collects what is to change in the webhooks of an object. Each webhook that changes is named, so that the patch
// fails, and is made again, if somebody else has changed their order.
type patch []operation

// bundle sets caBundle of the webhook at index i.
func (p *patch) bundle(i int, name string, client registrationv1.WebhookClientConfig, roots []byte) {
	if !bytes.Equal(client.CABundle, roots) {
		p.add(i, name, "clientConfig/caBundle", roots)
	}
}

func (p *patch) add(i int, name, field string, value any) {
	at := fmt.Sprintf("/webhooks/%d", i)
	*p = append(*p, operation{"test", at + "/name", name}, operation{"add", at + "/" + field, value})
}

// send gives a patch to write, unless it is empty.
func (p *patch) send(ctx context.Context, write func(ctx context.Context, text []byte) error) (written bool, err error) {
	if len(*p) == 0 {
		return false, nil
	}
	text, err := json.Marshal(*p)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return true, write(ctx, text)
}
