package helper

import (
	"context"
	"strings"
	"sync"

	"go.step.sm/crypto/kms/apiv1"

	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

// cloud is a store in the key service of a cloud. Keys are named by form.
type cloud struct {
	kms  apiv1.KeyManager
	form form
	// making is held while a key is made: services do not refuse a second of one name.
	making sync.Mutex
}

// form says how a service names keys, and what it says about ones that are not there.
type form struct {
	kind apiv1.Type
	// name is by which a key is made, uri by which it is found.
	name, uri func(key string) string
	missing   []string
	tool      string
}

var forms = map[apiv1.Type]form{
	apiv1.AmazonKMS: {
		kind:    apiv1.AmazonKMS,
		name:    func(key string) string { return key },
		uri:     func(key string) string { return "awskms:key-id=alias/" + key },
		missing: []string{"NotFoundException"},
		tool:    "aws kms schedule-key-deletion",
	},
	apiv1.CloudKMS: {
		kind:    apiv1.CloudKMS,
		name:    func(key string) string { return "cloudkms:" + key },
		uri:     func(key string) string { return "cloudkms:" + key + "/cryptoKeyVersions/1" },
		missing: []string{"code = NotFound"},
		tool:    "gcloud kms keys versions destroy",
	},
	apiv1.AzureKMS: {
		kind:    apiv1.AzureKMS,
		name:    func(key string) string { return "azurekms:name=" + key },
		uri:     func(key string) string { return "azurekms:name=" + key },
		missing: []string{"KeyNotFound"},
		tool:    "az keyvault key delete",
	},
}

// openCloud returns the opener of a service.
func openCloud(kind apiv1.Type) opener {
	return func(ctx context.Context, s *wire.Store) (store, error) {
		kms, err := openKMS(ctx, kind, apiv1.Options{Type: kind, URI: s.URI})
		if err != nil {
			return nil, wire.Errorf(wire.Away, "open %s: %v", kind, err)
		}
		return &cloud{kms: kms, form: forms[kind]}, nil
	}
}

func (c *cloud) manager() apiv1.KeyManager { return c.kms }

func (c *cloud) explain(err error) *wire.Error {
	for _, words := range c.form.missing {
		if strings.Contains(err.Error(), words) {
			return wire.Errorf(wire.NoKey, "%v", err)
		}
	}
	for _, words := range []string{"AccessDenied", "code = PermissionDenied", "code = Unauthenticated", "Forbidden", "Unauthorized"} {
		if strings.Contains(err.Error(), words) {
			return wire.Errorf(wire.Refused, "%v; let the ca's account use the key", err)
		}
	}
	return wire.Errorf(wire.Away, "%v", err)
}

func (c *cloud) find(key string) (string, error) {
	uri := c.form.uri(key)
	if _, err := c.kms.GetPublicKey(&apiv1.GetPublicKeyRequest{Name: uri}); err != nil {
		return "", c.explain(err)
	}
	return uri, nil
}

func (c *cloud) make(key string, algorithm apiv1.SignatureAlgorithm, bits int) (string, error) {
	c.making.Lock()
	defer c.making.Unlock()
	_, err := c.find(key)
	if err == nil {
		return "", wire.Errorf(wire.KeyExists, "key %q", key)
	}
	if said, ok := err.(*wire.Error); !ok || said.Code != wire.NoKey { //nolint:errorlint // find returns no other
		return "", err
	}
	made, err := c.kms.CreateKey(&apiv1.CreateKeyRequest{Name: c.form.name(key), SignatureAlgorithm: algorithm, Bits: bits})
	switch {
	case err != nil && strings.Contains(err.Error(), "AlreadyExists"):
		return "", wire.Errorf(wire.KeyExists, "key %q", key)
	case err != nil:
		return "", c.explain(err)
	case c.form.kind == apiv1.CloudKMS && made.Name != c.form.uri(key):
		// Another made the key first, and this call only a further version of it.
		return "", wire.Errorf(wire.KeyExists, "key %q", key)
	}
	return c.form.uri(key), nil
}

func (c *cloud) delete(key string) error {
	_, err := c.find(key)
	if err == nil {
		return wire.Errorf(wire.Unsuitable, "key %q stays: a cloud deletes keys after a time of waiting; run %s", key, c.form.tool)
	}
	if said, ok := err.(*wire.Error); ok && said.Code == wire.NoKey { //nolint:errorlint // find returns no other
		return nil
	}
	return err
}
