// Program ca-kms is the helper of the ca for keys in a PKCS#11 token or a cloud's key service. The ca starts it; it has
// no flags, reads requests from its standard input and ends with that. Exit codes: 0 input has ended, 1 failed.
package main

import (
	"fmt"
	"os"

	"fairlead.dev/services/ca/kms/internal/helper"
)

func main() {
	if err := helper.Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ca-kms:", err)
		os.Exit(1)
	}
}
