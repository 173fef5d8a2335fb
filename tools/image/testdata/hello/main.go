// Command hello is the binary of the tests' images.
package main

import "fmt"

func main() { fmt.Println("hello from the image") }
