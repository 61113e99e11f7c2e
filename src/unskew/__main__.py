from unskew.cli import command

command()
